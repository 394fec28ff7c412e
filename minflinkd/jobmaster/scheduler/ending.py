"""StandingDown, Stopping and Settling: a job whose tasks end makes way for another JobMaster, or comes to its end."""

from __future__ import annotations

from msgspec.structs import replace as copy

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.phases import Ended, Settling, StandingDown, StoodDown, Stopping, WaitingForSlots
from minflinkd.jobmaster.scheduler.running import give_back
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.jobmaster.scheduler.step import Step
from minflinkd.rpc.jobs import FailureRecord
from minflinkd.runtime.errors import ErrorInfo

_UNSETTLED = "the sinks could not be settled; what is staged stays, and so do the job's checkpoints: "


def advance_standing_down(this: Step, phase: StandingDown) -> None:
    if this.state.all_gone and this.now >= phase.not_before:
        this.enter(StoodDown())
        this.commands.append(ev.StoodDown())


def go_on(this: Step) -> None:
    """Bring the job back after it stood down in vain. Its tasks may still be ending."""
    this.set(on_trial=False)
    this.restart(WaitingForSlots(restart_at=this.now), cause="no other version followed")


def advance_stopping(this: Step, phase: Stopping) -> None:
    due = settling_due(this.state)
    if not this.state.all_gone or (due is not None and this.now < due):
        return
    # Free the slots first: the sinks' storage may be slow or unreachable.
    give_back(this, list(this.state.pool.held), job_ended=True)
    this.enter(Settling(phase.outcome))
    this.commands.append(ev.SettleSinks())


def settling_due(state: JobState) -> float | None:
    """Return when an ending job that was taken over from an earlier JobMaster may settle its sinks (R13).

    Until then TaskManagers may still be ending what the earlier JobMaster deployed. Each one offers its slots when it
    is done. Nobody knows how many TaskManagers there are, so the job waits for a while after the last offer.
    """
    if (takeover := state.takeover) is None:
        return None
    options = state.options
    latest = takeover.since + options.cancellation_timeout + options.heartbeat_timeout
    since = takeover.offered_at
    if since is None and not state.has_run:
        since = takeover.since  # no checkpoint was found: nothing that an old attempt stages or uploads is ever used
    return latest if since is None else min(latest, since + options.heartbeat_timeout)


def settled(this: Step, phase: Settling, error: ErrorInfo | None) -> None:
    if error is not None:
        this.set(sinks_error=error)
        this.note(FailureRecord(timestamp_ms=0, error=copy(error, message=_UNSETTLED + error.message)))
    this.enter(Ended(phase.outcome))
    this.commands.append(ev.End(phase.outcome))
