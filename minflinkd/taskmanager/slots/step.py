"""One step of the slots' machine, and the small operations that its parts share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from minflinkd.runtime import machine
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId
from minflinkd.taskmanager.slots import events as ev
from minflinkd.taskmanager.slots import table as st
from minflinkd.taskmanager.slots.state import Job, Slots
from minflinkd.taskmanager.slots.table import SlotState


class Step(machine.Step[Slots, ev.Command]):
    def put(self, job_id: JobId, job: Job) -> None:
        self.state = self.state.with_job(job_id, job)

    def accept(self, allocations: Iterable[AllocationId]) -> None:
        """The job's JobMaster has taken these slots, and with them the tasks that an earlier one deployed there."""
        taken = list(allocations)
        self.set(table=st.moved(self.state.table, taken, SlotState.ACTIVE, self.now))
        leaders = {
            b.job_id: self.state.jobs[b.job_id].leader for a, b in self.state.table.bindings.items() if a in taken
        }
        for job_id, leader in sorted(leaders.items()):
            running = {a: self.state.attempts[a] for a in self.state.on(*taken)}
            other = {a: r for a, r in running.items() if r.job_id == job_id and r.leader != leader and not r.ending}
            if other:
                adopted = {a: replace(r, leader=leader) for a, r in other.items()}
                self.set(attempts={**self.state.attempts, **adopted})
                self.commands.append(ev.Adopted(tuple(adopted), leader))

    def hold(self, job_id: JobId, *states: SlotState) -> None:
        """Hold the slots in these states from now on. Slots already held are held for the full time again.

        Tasks of the job keep running here meanwhile. A failure that no JobMaster knows is kept as long as a task:
        without it, the next JobMaster would restart the task as if nothing had happened.
        """
        options = self.state.options
        until = self.now + (options.orphan_timeout if self.state.awaited_by(job_id) else options.hold_timeout)
        table = st.kept_until(self.state.table, self.state.table.of_job(job_id, SlotState.HELD), until)
        self.set(table=st.moved(table, table.of_job(job_id, *states), SlotState.HELD, self.now, until=until))

    def release(self, allocations: Iterable[AllocationId], reason: str = "") -> None:
        """Free these slots: at once if nothing runs on them, otherwise when it has ended.

        `reason` is for the tasks that end now. Slots without such tasks need none.
        """
        given = list(allocations)
        busy = [a for a in given if self.state.on(a)]
        table = st.freed(self.state.table, set(given) - set(busy))
        self.set(table=st.moved(table, busy, SlotState.RELEASING, self.now))
        self.end(self.state.on(*busy), reason)

    def hears(self, attempts: Iterable[AttemptId]) -> None:
        """Forget these failures: they need not be kept any more."""
        if known := self.state.unheard.keys() & set(attempts):
            self.set(unheard={a: r for a, r in self.state.unheard.items() if a not in known})

    def end(self, attempts: Iterable[AttemptId], reason: str) -> None:
        """End these attempts. Each attempt is ended only once, however often this is called."""
        running = {a: self.state.attempts[a] for a in sorted(attempts) if a in self.state.attempts}
        ending = {a: replace(r, ending=True) for a, r in running.items() if not r.ending}
        if ending:
            self.set(attempts={**self.state.attempts, **ending})
            self.commands.append(ev.EndTasks(tuple(ending), reason))
