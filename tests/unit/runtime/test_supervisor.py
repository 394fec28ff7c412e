"""One component is kept running, whatever happens to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from minflinkd.runtime import supervisor
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.supervisor import Supervisor
from tests.waiting import until

pytestmark = pytest.mark.looptime


class Part(Component):
    def __init__(self, *, fails: bool = False, stuck: bool = False) -> None:
        super().__init__("part")
        self.fails = fails
        self.stuck = stuck
        self.started_at = -1.0
        self.closed = False

    async def _start(self) -> None:
        self.started_at = asyncio.get_running_loop().time()
        if self.fails:
            raise ValueError("the disk is away")

    async def _stop(self) -> None:
        if self.stuck:
            await asyncio.Event().wait()
        self.closed = True


class Workshop:
    """Remembers everything that was made: first as `kinds` say, then well-behaved parts."""

    def __init__(self, *kinds: Callable[[], Part]) -> None:
        self.made: list[Part] = []
        self._kinds = iter(kinds)

    def __call__(self) -> Part:
        self.made.append(next(self._kinds, Part)())
        return self.made[-1]


def supervised(
    workshop: Workshop, *, insist: bool = False, on_down: Callable[[Exception], object] = lambda _: None
) -> Supervisor[Part]:
    return Supervisor("part", workshop, clock=SystemClock(), insist=insist, on_down=on_down)


async def test_a_crashed_component_is_closed_before_a_new_one_takes_its_place() -> None:
    """A1."""
    workshop = Workshop()
    with capture_logs():
        async with supervised(workshop) as keeper:
            (first,) = workshop.made
            assert keeper.current is first
            first.crash(bug := ValueError("broken"))
            assert keeper.current is None
            await asyncio.sleep(1)
            _, second = workshop.made
            assert (first.closed, keeper.current, keeper.error, keeper.failures) == (True, second, bug, 1)
    assert second.closed
    assert keeper.current is None


async def test_crashes_in_a_row_back_off_and_a_quiet_time_ends_it() -> None:
    """The pauses begin with 0.1 s and double up to 10 s. A minute without a crash resets them."""
    workshop = Workshop()
    with capture_logs():
        async with supervised(workshop):
            for _ in range(9):
                workshop.made[-1].crash(ValueError("broken"))
                count = len(workshop.made)
                await asyncio.sleep(10.5)
                assert len(workshop.made) == count + 1
            moments = [part.started_at for part in workshop.made]
            rounds = zip(itertools.count(step=10.5), moments[1:], strict=False)
            pauses = [round(started - crashed, 3) for crashed, started in rounds]
            assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
            await asyncio.sleep(supervisor.QUIET)
            workshop.made[-1].crash(ValueError("broken"))
            await asyncio.sleep(0.2)
            assert len(workshop.made) == 11


async def test_the_first_start_fails_as_the_component_does() -> None:
    workshop = Workshop(lambda: Part(fails=True))
    keeper = supervised(workshop)
    with pytest.raises(ValueError, match="the disk is away"):
        await keeper.start()
    assert workshop.made[0].closed


async def test_one_that_insists_tries_the_first_start_again_and_shows_the_error() -> None:
    workshop = Workshop(*[lambda: Part(fails=True)] * 2)
    with capture_logs():
        async with supervised(workshop, insist=True) as keeper:
            assert (keeper.current, str(keeper.error)) == (None, "the disk is away")
            await asyncio.sleep(1)
            assert keeper.current is workshop.made[2]


async def test_a_start_that_fails_after_a_crash_is_tried_again() -> None:
    workshop = Workshop(Part, lambda: Part(fails=True))
    with capture_logs():
        async with supervised(workshop) as keeper:
            workshop.made[0].crash(ValueError("broken"))
            await asyncio.sleep(1)
            assert keeper.current is workshop.made[2]
            assert keeper.failures == 2


@pytest.mark.parametrize("stubborn", [False, True], ids=["", "also when cancelled"])
async def test_a_start_that_hangs_has_failed_after_a_time_and_lets_others_through_the_gate(stubborn: bool) -> None:
    """With `stubborn`, the start ignores cancellation, like code that waits for a thread that does not return (A5)."""

    class Hanging(Part):
        async def _start(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                if stubborn:
                    await asyncio.Event().wait()

    gate, workshop = asyncio.Semaphore(1), Workshop(Hanging)
    with capture_logs():
        hanging = Supervisor("part", workshop, clock=SystemClock(), gate=gate, insist=True)
        async with (
            asyncio.timeout(supervisor.START_TIMEOUT + supervisor.CLOSE_TIMEOUT + 1),
            asyncio.TaskGroup() as group,
        ):
            group.create_task(hanging.start())
            await asyncio.sleep(1)
            other = Supervisor("part", Part, clock=SystemClock(), gate=gate)
            group.create_task(other.start())
        assert other.current is not None
        assert "has not started within" in str(hanging.error)
        await asyncio.sleep(1)
        assert hanging.current is workshop.made[1]
        await other.aclose()
        await hanging.aclose()


async def test_a_crashed_component_that_does_not_end_is_left_alone_after_a_time() -> None:
    """The successor starts all the same."""
    workshop = Workshop(lambda: Part(stuck=True))
    with capture_logs() as logs:
        async with supervised(workshop) as keeper:
            workshop.made[0].crash(ValueError("broken"))
            await asyncio.sleep(supervisor.CLOSE_TIMEOUT + 1)
            assert keeper.current is workshop.made[1]
    assert "a component does not end" in [line["event"] for line in logs]


async def test_the_failure_of_a_closing_that_was_given_up_is_told_when_it_ends() -> None:
    freed = asyncio.Event()

    class Stubborn(Part):
        async def _stop(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await freed.wait()
                raise ValueError("the disk is away")

    workshop = Workshop(Stubborn)
    with capture_logs() as logs:
        async with supervised(workshop):
            workshop.made[0].crash(ValueError("broken"))
            await asyncio.sleep(supervisor.CLOSE_TIMEOUT + 1)
            freed.set()
            await asyncio.sleep(1)
    assert ("what was given up failed", "the disk is away") in [(line["event"], line.get("error")) for line in logs]


async def test_a_supervisor_that_is_closed_while_it_closes_its_component_closes_it_whole() -> None:
    class Slow(Part):
        async def _stop(self) -> None:
            await asyncio.sleep(2)
            self.closed = True

    workshop = Workshop(Slow)
    with capture_logs():
        async with supervised(workshop):
            workshop.made[0].crash(ValueError("broken"))
            await asyncio.sleep(1)
    assert workshop.made[0].closed
    assert len(workshop.made) == 1


async def test_somebody_who_waits_makes_the_next_try_come_at_once() -> None:
    workshop = Workshop(*[lambda: Part(fails=True)] * 9)
    with capture_logs():
        async with supervised(workshop, insist=True) as keeper:
            await asyncio.sleep(13)  # in the middle of a long pause
            count = len(workshop.made)
            assert count == 8
            keeper.hurry()
            await asyncio.sleep(0.5)
            assert keeper.current is not None
            assert len(workshop.made) == 10


@pytest.mark.parametrize("kinds", [[Part], [Part, lambda: Part(fails=True)]], ids=["a crash", "a failed start"])
async def test_a_retired_one_has_no_successor(kinds: list[Callable[[], Part]]) -> None:
    """A component may retire because of the crash that it was just told of."""
    workshop = Workshop(*kinds)

    def told(_: Exception) -> None:
        if len(workshop.made) == len(kinds):
            keeper.retire()

    with capture_logs() as logs:
        keeper = supervised(workshop, on_down=told)
        async with keeper:
            workshop.made[0].crash(ValueError("broken"))
            await asyncio.sleep(60)
            assert len(workshop.made) == len(kinds)
    assert workshop.made[0].closed
    assert "a loop that should run for ever returned" not in [line["event"] for line in logs]


async def test_supervisors_that_share_a_gate_bring_their_components_up_in_turn() -> None:
    now, most = 0, 0

    class Slow(Part):
        async def _start(self) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(1)
            now -= 1

    gate = asyncio.Semaphore(2)
    keepers = [Supervisor("part", Slow, clock=SystemClock(), gate=gate) for _ in range(6)]
    await asyncio.gather(*(keeper.start() for keeper in keepers))
    assert most == 2
    await asyncio.gather(*(keeper.aclose() for keeper in keepers))


async def test_a_component_gives_way_to_the_next_without_a_pause_and_without_a_failure() -> None:
    """The next one is made once, with what is known at that time, however often it was requested (H3)."""
    workshop, downs = Workshop(), list[Exception]()
    async with supervised(workshop, on_down=downs.append) as one:
        first = workshop.made[0]
        began = asyncio.get_running_loop().time()
        one.succeed()
        one.succeed()
        await until(lambda: one.current not in (first, None))
        assert asyncio.get_running_loop().time() - began < supervisor.FIRST_PAUSE
        assert (first.closed, len(workshop.made), downs) == (True, 2, [])
        assert workshop.made[1].started_at >= 0


async def test_a_successor_that_does_not_start_is_tried_again() -> None:
    """A successor that does not start is treated like one that crashed (A1)."""
    workshop = Workshop(Part, lambda: Part(fails=True))
    with capture_logs():
        async with supervised(workshop) as one:
            one.succeed()
            await until(lambda: len(workshop.made) >= 3 and one.current is not None)
            assert one.current is workshop.made[2]
