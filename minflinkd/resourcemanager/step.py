"""One step of the slot manager, and the small operations that its parts share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.state import Resources, Wish
from minflinkd.resourcemanager.task_managers import TaskManager
from minflinkd.runtime import machine
from minflinkd.runtime.ids import ResourceId


@dataclass(frozen=True)
class Setting:
    """What decisions depend on besides the state."""

    options: ResourceManagerOptions
    new_resource_id: Callable[[], ResourceId]


class Step(machine.Step[Resources, ev.Command]):
    def __init__(self, setting: Setting, state: Resources, now: float) -> None:
        super().__init__(state, now)
        self.options = setting.options
        self.new_resource_id = setting.new_resource_id

    def put(self, tm: TaskManager) -> None:
        self.state = self.state.with_task_manager(tm)

    def wish(self, key: str, wish: Wish) -> None:
        """A later wish with the same key replaces this one."""
        self.set(wishes={**self.state.wishes, key: wish})

    def drop_wish(self, key: str) -> None:
        if key in self.state.wishes:
            self.set(wishes={k: w for k, w in self.state.wishes.items() if k != key})
