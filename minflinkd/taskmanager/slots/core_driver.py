"""Drives a TaskManager's core. Tells its owner about commands, registrations and a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from minflinkd.rpc.core_driver import CoreDriver
from minflinkd.rpc.messages import Registered, Request
from minflinkd.rpc.network import Address, Network
from minflinkd.runtime.clock import Clock
from minflinkd.taskmanager.slots.core import Exit, RenewSession, TaskManagerCore
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, ForgetJob, StartTask

log = structlog.get_logger(__name__)

OwnCommand = StartTask | Adopted | EndTasks | ForgetJob | RenewSession | Exit


class TaskManagerDriver(CoreDriver[TaskManagerCore]):
    """`carry_out` gets the commands that are not messages. `complete` adds to a request what the core does not know.

    `on_crash` gets the cause of a crash.
    """

    def __init__(
        self,
        core: TaskManagerCore,
        *,
        address: Address,
        network: Network,
        clock: Clock,
        carry_out: Callable[[OwnCommand], None],
        complete: Callable[[Request[Any]], Request[Any]] = lambda request: request,
        on_registered: Callable[[Registered], None] = lambda _: None,
        on_crash: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__("core of the TaskManager", core, address=address, network=network, clock=clock)
        self._owner_carries_out = carry_out
        self._owner_completes = complete
        self._on_registered = on_registered
        self._tell_crash = on_crash
        self._registered = core.registration.registered

    def _on_crash(self) -> None:
        super()._on_crash()
        self._tell_crash(str(self.crash_cause))

    def _carry_out_own(self, command: object) -> None:
        match command:
            case StartTask() | Adopted() | EndTasks() | ForgetJob() | RenewSession() | Exit():
                if isinstance(command, Exit) and command.failed:
                    log.warning("the TaskManager cannot go on", reason=command.reason)
                self._owner_carries_out(command)
            case _:
                super()._carry_out_own(command)

    def _complete(self, request: Request[Any]) -> Request[Any]:
        return self._owner_completes(request)

    def _decided(self) -> None:
        before, self._registered = self._registered, self._core.registration.registered
        if self._registered == before:
            return
        if self._registered is None:
            log.warning("no longer registered", reason=self._core.registration.why)
            return
        log.info("registered", leader=self._registered.leader_id, instance=self._registered.instance_id)
        self._on_registered(self._registered)
