"""A TaskManager for tests and benchmarks: the real core in its real driver, without a process, a session or tasks.

It registers, beats, gives slots and frees them as a TaskManager does, since the core decides all of that. Other
stand-ins serve other layers, and are not the core on purpose:
- `tests/sim/protocol/task_manager.py` has the same core, but no asyncio: it runs on the simulation's heap of events.
- `tests/sim/jobmaster/world.py` runs tasks and takes checkpoints as the test says. There is no ResourceManager, and the
  test gives the slots.
- `tests/unit/resourcemanager/test_slot_manager_model.py` has a model of what slots are, to compare decisions with.
- `tests/unit/rest/parties.py` and `tests/unit/dispatcher/conftest.py` answer what the endpoint and the Dispatcher ask a
  TaskManager: for logs and rows, and to analyse a job.
"""

from __future__ import annotations

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Network, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.slots.core import TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.slots.core_driver import OwnCommand, TaskManagerDriver
from minflinkd.taskmanager.slots.table import SlotTable


class BareTaskManager(TaskManagerDriver):
    """`commanded` has the commands that are not messages, in order. Subclasses may play what these ask for."""

    def __init__(
        self,
        resource_id: ResourceId,
        network: Network,
        *,
        slots: int,
        session: m.SessionPhase = m.SessionPhase.READY,
        options: TaskManagerOptions | None = None,
        standalone: bool = False,
    ) -> None:
        self.resource_id = resource_id
        self.phase = m.SessionPhase.STARTING
        self.commanded: list[OwnCommand] = []
        clock, address, options = SystemClock(), task_manager(resource_id), options or TaskManagerOptions()
        self.hello = m.RegisterTaskManager(
            address=address,
            pid=1,
            hardware=m.Hardware(cpu_cores=max(slots, 1), memory_bytes=1 << 34),
            log_directory="log",
            report=m.TaskManagerReport(resource_id=resource_id, slots=(), session=self.phase),
            standalone=standalone,
        )
        self.core = TaskManagerCore(self.hello, slots=slots, options=options, now=clock.monotonic())
        super().__init__(
            self.core,
            address=address,
            network=network,
            clock=clock,
            carry_out=self.commanded_to,
            complete=self.complete,
        )
        if session is not self.phase:
            self.enter(session)

    @property
    def table(self) -> SlotTable:
        return self.core.slots.table

    @property
    def registered(self) -> m.Registered | None:
        return self.core.registration.registered

    def enter(self, phase: m.SessionPhase) -> None:
        """Let the session be in this phase."""
        self.phase = phase
        self.inform(lambda now: self.core.session_changed(phase, 1, aged=False, now=now))

    def commanded_to(self, command: OwnCommand) -> None:
        self.commanded.append(command)

    def complete(self, request: m.Request[object]) -> m.Request[object]:
        """Return what is sent in place of this request."""
        return request
