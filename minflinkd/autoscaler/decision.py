"""When a job gets other slots (R62). Pure: `decide` goes from one state to the next with each reading of the job.

More slots: soon, once what is needed has been too much for a while and does not grow any more. Fewer: only when they
have sufficed for the whole `scale-down-delay`, whose maximum counts. Between two changes, whoever has made them, lies
the cool-down. A number of slots that proved too few is not tried again while as many rows come in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from minflinkd.autoscaler.cost import SPREAD
from minflinkd.autoscaler.demand import COMFORT, GroupDemand, demand
from minflinkd.autoscaler.effect import trial_of
from minflinkd.autoscaler.readings import JobReading, follow
from minflinkd.autoscaler.state import KEPT, Asked, Decision, Floor, Limits, Need, State, Verdict, judged, noted

BAND: Final = 1.1  # times the target: how much more of its slots a group may use before it gets others
SUSTAINED: Final = 10.0  # seconds for which they must be too few
GROWING: Final = 1.1  # times: if more is needed than SUSTAINED ago, it is not known yet how much it will be
LONGEST_GROWTH: Final = 30.0  # seconds after which it gets what is known to be needed
SAME_RATE: Final = 0.9  # of the rows per second at which a number of slots proved too few
PROBED: Final = 0.75  # of its slots: fewer, but not so few that a wrong guess does harm
EPSILON: Final = 0.02  # slots that are not worth another one


def decide(state: State, reading: JobReading, limits: Limits) -> tuple[State, Decision]:
    """Take a reading in, and return what follows from it."""
    state = noted(state, reading)
    state = replace(state, tracks=follow(state.tracks, reading))
    if not reading.tasks:
        return state, Decision(verdict=Verdict.WAITS, why=reading.hold or "no task of the job runs")
    demands = demand(reading, state.tracks, target=limits.target, catch_up=limits.catch_up)
    if reading.hold:
        return replace(state, needs={}), Decision(verdict=Verdict.WAITS, why=reading.hold, demands=demands)
    state = judged(state, reading)
    state = replace(state, needs=_needs(state, reading, demands, limits))
    decision = _unless_blocked(state, reading, _chosen(state, reading, demands, limits))
    ready_at = ready_from(state, reading, limits)
    if decision.wanted and reading.at < ready_at:
        why = f"{decision.why}; the cool-down lasts {ready_at - reading.at:.0f} s more"
        return state, replace(decision, verdict=Verdict.WAITS, why=why, wanted={})
    if decision.wanted:
        state = _asked(state, reading, demands, decision.wanted)
    return state, decision


def _unless_blocked(state: State, reading: JobReading, decision: Decision) -> Decision:
    """Return the decision; but what was refused, or has failed, is not asked for again so soon."""
    blocked = state.blocked
    if blocked is None or reading.at >= blocked.until or decision.wanted != blocked.wanted:
        return decision
    return replace(decision, verdict=Verdict.LIMITED, why=f"{decision.why}; not again yet: {blocked.why}", wanted={})


def ready_from(state: State, reading: JobReading, limits: Limits) -> float:
    """Return the end of the cool-down: after the last change, whoever has made it, and after the tasks have begun."""
    last = reading.last_change.at if reading.last_change is not None else 0.0
    asked = state.asked.at if state.asked is not None else 0.0
    return max(reading.since, last, asked) + limits.cool_down


def _needs(
    state: State, reading: JobReading, demands: tuple[GroupDemand, ...], limits: Limits
) -> dict[str, tuple[Need, ...]]:
    found = {}
    keep = max(limits.down_delay, LONGEST_GROWTH) + SUSTAINED
    for each in demands:
        known = [need for need in state.needs.get(each.group, ()) if need.at > reading.at - keep]
        found[each.group] = (*known, _need(each, reading, state, limits))
    return found


def _need(each: GroupDemand, reading: JobReading, state: State, limits: Limits) -> Need:
    wanted = max(each.wanted, each.effective) if each.behind else each.wanted
    if any(task.cost is None and state.tracks[task.task].batches for task in each.tasks):
        wanted = max(wanted, each.effective)  # too few micro-batches to say that fewer would do
    too_few = each.used > each.effective * limits.target * BAND and (each.sure or each.pressing)
    return Need(reading.at, wanted, too_few, not each.pressing)


# --- what to do -----------------------------------------------------------------------------------------------------


def _chosen(state: State, reading: JobReading, demands: tuple[GroupDemand, ...], limits: Limits) -> Decision:
    """Return the decision for all groups together: one change, or the sentence of the group that needs most."""
    found = [_of_group(state, reading, each, limits) for each in demands]
    changes = [one for one in found if one.wanted]
    if changes:
        up = [one for one in changes if one.verdict is Verdict.UP]
        chosen = up or changes
        wanted = {group: n for one in chosen for group, n in one.wanted.items()}
        why = "; ".join(one.why for one in chosen)
        return Decision(verdict=chosen[0].verdict, why=why, wanted=wanted, demands=demands)
    order = (Verdict.LIMITED, Verdict.WAITS, Verdict.STAYS)
    first = min(found, key=lambda one: order.index(one.verdict))
    return replace(first, demands=demands)


def _of_group(state: State, reading: JobReading, each: GroupDemand, limits: Limits) -> Decision:
    group, width, needs = each.group, each.width, state.needs[each.group]
    if not limits.least <= width <= limits.most:
        within = min(max(width, limits.least), limits.most)
        verdict = Verdict.UP if within > width else Verdict.DOWN
        why = f"{_name(group)}{width} slots are not within {limits.least} to {limits.most}"
        return Decision(verdict=verdict, why=why, wanted={group: within})
    if needs[-1].too_few:
        return _up(state, reading, each, limits)
    return _down(state, reading, each, limits)


def _up(state: State, reading: JobReading, each: GroupDemand, limits: Limits) -> Decision:
    group, width, needs = each.group, each.width, state.needs[each.group]
    wanted = min(max(each.fitting(each.wanted - EPSILON), width + 1), limits.most)
    figures = _figures(each)
    if wanted <= width:
        why = f"{figures}; it has {width}, and max is {limits.most}"
        return Decision(verdict=Verdict.LIMITED, why=why)
    ceiling = next((c for c in state.ceilings if c.group == group and c.slots <= width), None)
    if ceiling is not None:
        why = f"{figures}; it stays at {width}, since {ceiling.why}: look for skew, few partitions, or a slow sink"
        return Decision(verdict=Verdict.LIMITED, why=why)
    if (blocked := state.blocked) is not None and reading.at < blocked.until:
        most = max(width, reading.room.get(group, width))
        wanted = min(wanted, most) if blocked.wanted.get(group, 0) <= wanted else wanted
        if wanted <= width:
            why = f"{figures}; wants {each.fitting(each.wanted - EPSILON)}, has {width}: no more slots ({blocked.why})"
            return Decision(verdict=Verdict.LIMITED, why=why)
    too_few_since = _since(needs)
    earlier = next((n.wanted for n in reversed(needs) if n.at <= reading.at - SUSTAINED), None)
    steady = earlier is not None and each.wanted <= GROWING * earlier
    lasted = reading.at - too_few_since
    if lasted < SUSTAINED or (not steady and lasted < LONGEST_GROWTH):
        return Decision(verdict=Verdict.WAITS, why=f"{figures}; it waits to see whether that lasts")
    return Decision(verdict=Verdict.UP, why=f"{figures}: {width} -> {wanted} slots", wanted={group: wanted})


def _since(needs: tuple[Need, ...]) -> float:
    """Return since when the slots are too few, without a break."""
    since = needs[-1].at
    for need in reversed(needs):
        if not need.too_few:
            break
        since = need.at
    return since


def _down(state: State, reading: JobReading, each: GroupDemand, limits: Limits) -> Decision:
    group, width, needs, now = each.group, each.width, state.needs[each.group], reading.at
    figures = _figures(each)
    lately = [need for need in needs if need.at > now - limits.down_delay]
    watched = now - needs[0].at >= limits.down_delay
    most = max(need.wanted for need in lately)
    if (floor := state.floors.get(group)) is not None and each.rate >= SAME_RATE * floor.rate:
        least = max(limits.least, floor.slots + 1)
    else:
        least = limits.least
    wanted = max(each.fitting(most - EPSILON), least)
    if wanted < width:
        if not watched:
            left = limits.down_delay - (now - needs[0].at)
            why = f"{figures}; {wanted} would do if it stays so for {max(left, 0.0):.0f} s more"
            return Decision(verdict=Verdict.STAYS, why=why)
        why = f"{figures}, and no more for {limits.down_delay:.0f} s: {width} -> {wanted} slots"
        return Decision(verdict=Verdict.DOWN, why=why, wanted={group: wanted})
    probe = max(min(width - 1, math.ceil(PROBED * width)), least)
    if watched and probe < width and not each.sure and not each.behind and _tiny(state, each, lately):
        why = (
            f"{_name(group)}micro-batches took less than {COMFORT:.0f} s for {limits.down_delay:.0f} s, and only fewer "
            f"slots can show what their rows cost: {width} -> {probe} slots"
        )
        return Decision(verdict=Verdict.DOWN, why=why, wanted={group: probe})
    if each.behind and each.used <= width * limits.target:
        return Decision(verdict=Verdict.STAYS, why=f"{figures}; it is behind: {each.behind}")
    if not each.sure and any(state.tracks[task.task].batches for task in each.tasks):
        why = f"{figures} at most; its micro-batches are too alike to say more, and short enough"
        return Decision(verdict=Verdict.STAYS, why=why)
    return Decision(verdict=Verdict.STAYS, why=f"{figures}; it has {width}")


def _tiny(state: State, each: GroupDemand, lately: list[Need]) -> bool:
    """Whether micro-batches would stay short even if all of their time grew with fewer slots."""
    recent = [b for task in each.tasks for b in state.tracks[task.task].batches if b.at >= lately[0].at]
    return all(need.quiet for need in lately) and all(b.seconds <= COMFORT / SPREAD for b in recent)


def _asked(state: State, reading: JobReading, demands: tuple[GroupDemand, ...], wanted: Mapping[str, int]) -> State:
    """Remember what is asked for, and what to look at afterwards."""
    now, before = reading.at, reading.widths
    trials = [trial_of(each, wanted[each.group], now) for each in demands if each.group in wanted]
    floors = dict(state.floors)
    for each in demands:
        down = state.lowered.get(each.group)
        if wanted.get(each.group, 0) > each.width and down == each.width:
            floors[each.group] = Floor(slots=each.width, rate=each.rate, until=now + KEPT)
    asked = Asked(at=now, before=before, after=dict(wanted), trials=tuple(t for t in trials if t is not None))
    return replace(state, asked=asked, needs={}, floors=floors)


def _figures(each: GroupDemand) -> str:
    """Say what the heaviest task of a group has to do, and what that takes."""
    task = each.heaviest
    waits = f", {task.backlog:,} records wait" if task.backlog else ""
    can = "" if task.capacity is None else f" of the {task.capacity:,.0f} that its {each.width} could process"
    return f"{_name(each.group)}{task.name} gets {task.rate:,.0f} rows/s{can}{waits}: it needs {each.wanted:.1f} slots"


def _name(group: str) -> str:
    return "" if group == "default" else f"slot sharing group {group}: "
