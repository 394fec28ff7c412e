"""The lifecycle that all components share (A1)."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.runtime.component import Component


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
    """A1: `aclose` is idempotent."""
    component = Recorder()
    await component.start()
    await component.aclose()
    await component.aclose()
    assert component.calls == ["start", "last words", "stop"]


async def test_closing_what_was_never_started_does_nothing() -> None:
    component = Recorder()
    await component.aclose()
    assert component.calls == []


async def test_a_failed_start_leaves_nothing_behind() -> None:
    """A1: what was begun is undone before the error goes on; closing it afterwards does nothing more."""
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
