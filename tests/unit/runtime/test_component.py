"""The lifecycle of all components (A1)."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from minflinkd.runtime.component import Component, Crashed


class Recorder(Component):
    def __init__(self, *, failing: str = "") -> None:
        super().__init__("recorder")
        self.calls: list[str] = []
        self.failing = failing
        self.tasks_at_last_words: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise ValueError(name)

    async def _start(self) -> None:
        self.tasks.loop("work", asyncio.Event().wait)  # type: ignore[arg-type]
        self._call("start")

    async def _before_stop(self) -> None:
        self.tasks_at_last_words = self.tasks.names()
        self._call("last words")

    async def _stop(self) -> None:
        assert len(self.tasks) == 0
        self._call("stop")


async def test_a_component_says_its_last_words_while_its_tasks_run_and_stops_without_them() -> None:
    """A1."""
    async with Recorder() as component:
        assert component.running
    assert not component.running
    assert component.calls == ["start", "last words", "stop"]
    assert component.tasks_at_last_words == ["recorder: work"]


async def test_closing_again_does_nothing() -> None:
    """`aclose` is idempotent (A1)."""
    component = Recorder()
    await component.start()
    await component.aclose()
    await component.aclose()
    assert component.calls == ["start", "last words", "stop"]


class Slow(Recorder):
    """A component that stops only when the test lets it."""

    def __init__(self, *, failing: str = "") -> None:
        super().__init__(failing=failing)
        self.may_stop = asyncio.Event()

    async def _stop(self) -> None:
        await self.may_stop.wait()
        await super()._stop()


async def test_everybody_who_closes_a_component_waits_until_it_is_closed() -> None:
    """Others wait even if the first `aclose` was cancelled. Whatever follows finds everything freed (A1)."""
    component = Slow()
    await component.start()
    first, second = (asyncio.create_task(component.aclose()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert (first.cancelled(), second.done(), component.calls) == (True, False, ["start", "last words"])
    component.may_stop.set()
    await second
    assert component.calls == ["start", "last words", "stop"]


async def test_those_who_wait_for_a_component_that_does_not_end_well_are_told() -> None:
    """Later callers are not: as much as possible is closed, so a repetition succeeds."""
    component = Slow(failing="stop")
    await component.start()
    closings = [asyncio.create_task(component.aclose()) for _ in range(2)]
    component.may_stop.set()
    ends = await asyncio.gather(*closings, return_exceptions=True)
    assert [repr(end) for end in ends] == ["ValueError('stop')"] * 2
    await component.aclose()
    assert component.calls == ["start", "last words", "stop"]


async def test_closing_what_was_never_started_does_nothing() -> None:
    component = Recorder()
    await component.aclose()
    assert component.calls == []


async def test_a_failed_start_leaves_nothing_behind() -> None:
    """Everything begun is undone before the error is raised. Closing it afterwards does nothing more (A1)."""
    component = Recorder(failing="start")
    with pytest.raises(ValueError, match="start"):
        await component.start()
    assert component.calls == ["start", "stop"]
    assert (component.running, len(component.tasks)) == (False, 0)
    await component.aclose()
    assert component.calls == ["start", "stop"]


async def test_failing_last_words_do_not_keep_a_component_from_stopping() -> None:
    component = Recorder(failing="last words")
    await component.start()
    with pytest.raises(ValueError, match="last words"):
        await component.aclose()
    assert component.calls == ["start", "last words", "stop"]
    assert len(component.tasks) == 0


class Decider(Recorder):
    """Decides in a loop and in a handler, and crashes when the test says so."""

    def _on_crash(self) -> None:
        self.calls.append("crash")

    def decide(self, error: Exception | None) -> None:
        if error is not None:
            raise self.crash(error) from error


async def test_a_crashed_component_decides_nothing_any_more_and_stops_without_last_words() -> None:
    """A crashed component takes no more messages, and everything is freed when it is closed (A1)."""
    component = Decider()
    await component.start()
    bug = ValueError("slot 3 is held twice")
    with capture_logs() as logs, pytest.raises(Crashed, match="slot 3 is held twice"):
        component.decide(bug)
    assert (component.running, component.crashed.is_set(), component.crash_cause) == (False, True, bug)
    assert [(line["event"], line["error"]) for line in logs] == [("a component crashed", "slot 3 is held twice")]
    with pytest.raises(RuntimeError, match="closed"):
        component.tasks.loop("another", asyncio.Event().wait)  # type: ignore[arg-type]
    await component.aclose()
    assert component.calls == ["start", "crash", "stop"]
    assert len(component.tasks) == 0


async def test_the_first_crash_of_a_component_is_the_one_that_counts() -> None:
    async with Decider() as component:
        first, second = ValueError("first"), ValueError("second")
        with capture_logs():
            for error in (first, second):
                assert isinstance(component.crash(error), Crashed)
        assert component.crash_cause is first
        assert component.calls.count("crash") == 1


async def test_a_loop_that_crashes_its_component_ends() -> None:
    """The guard restarts failed loops, but not those of a component that has crashed."""
    component = Decider()
    await component.start()

    async def body() -> None:
        component.decide(ValueError("broken"))

    with capture_logs():
        task = component.tasks.loop("deciding", body)
        async with asyncio.timeout(1):
            await asyncio.wait({task})
    assert task.exception() is None
    await component.aclose()


async def test_a_component_falls_with_its_part() -> None:
    async with Decider() as whole:
        async with Decider() as part:
            part.falls_with = whole.crash
            with capture_logs():
                part.crash(bug := ValueError("broken"))
        assert whole.crash_cause is bug


async def test_a_component_that_has_crashed_refuses_to_decide() -> None:
    """Its state cannot be trusted (A1)."""
    async with Decider() as component:
        component.raise_if_crashed()
        with capture_logs():
            component.crash(ValueError("broken"))
        with pytest.raises(Crashed, match="broken"):
            component.raise_if_crashed()
