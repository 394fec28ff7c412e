"""Random histories of a coordinator, its tasks and its storage: what holds after every step and at the end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.layout import parse_physical_file
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine import transitions as coordinator
from minflinkd.checkpoint.machine.registry import Registry
from minflinkd.checkpoint.machine.state import check_invariants, may_restore, orphans, owed_to
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, TaskId
from tests.unit.checkpoint.builders import ERROR, JOB, NOON, A, B, snapshot

OPTIONS = CheckpointOptions(interval=10.0, timeout=60.0, tolerable_failed=3)
_FOR_OTHERS = (
    e.Report | e.ReportSetUpFailure | e.ReportPublished | e.CancelHooks | e.Refuse | e.Fail | e.Complete | e.FailJob
)  # these concern neither storage nor tasks
RARELY = st.integers(0, 7)


class CoordinatorModel(RuleBasedStateMachine):
    """The real machine. Storage, tasks and the messages between them are unreliable and as simple as possible."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[int, CompletedCheckpoint] = {}  # in the storage
        self.files: set[str] = set()  # in the storage
        self.files_ever: set[str] = set()
        self.ids: list[int] = []  # every id ever assigned
        self.generation = 0
        self.now = 0.0
        self.options = OPTIONS
        self.begin()

    @initialize(num_retained=st.integers(1, 2), max_concurrent=st.integers(1, 2), hooks=st.sampled_from([(), ("h",)]))
    def options_are_given(self, num_retained: int, max_concurrent: int, hooks: tuple[str, ...]) -> None:
        self.options = replace(OPTIONS, num_retained=num_retained, max_concurrent=max_concurrent, hooks=hooks)
        self.begin()

    def begin(self) -> None:
        """Start a coordinator that knows only the storage."""
        stored = tuple(self.metadata[number] for number in sorted(self.metadata))
        self.state = coordinator.initial(JOB, self.options, stored, last_id=max(self.ids, default=0))
        self.todo: list[e.Command] = []
        self.attempts: dict[TaskId, AttemptId] = {}
        self.survivors: dict[TaskId, AttemptId] = {}  # these run on while others are restarted
        self.triggered: list[tuple[TaskId, AttemptId, int]] = []
        self.sent: list[TaskSnapshot] = []
        self.suspects = frozenset[str]()  # unreferenced at the last sweep
        self.confirmed: dict[TaskId, frozenset[str]] = {A: frozenset(), B: frozenset()}

    def tell(self, event: e.Event) -> None:
        self.state, commands = coordinator.step(self.state, event, self.now)
        check_invariants(self.state)
        self.todo += [c for c in commands if not isinstance(c, _FOR_OTHERS)]
        if any(isinstance(c, e.FailJob) for c in commands):
            self.failover()

    # --- what may happen -----------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(e.Tick())

    @rule()
    def somebody_asks(self) -> None:
        self.tell(e.TriggerRequested(1_000_000 + len(self.ids)))

    @rule(luck=RARELY)
    def all_input_ends(self, luck: int) -> None:
        if luck == 5:
            self.tell(e.FinalRequested())

    @rule(stop=st.sampled_from([False, False, True]))
    def somebody_wants_a_savepoint(self, stop: bool) -> None:
        self.tell(e.TriggerRequested(1_000_000 + len(self.ids), CheckpointKind.SAVEPOINT, forced=True, stop=stop))

    @precondition(lambda self: self.state.pinned)
    @rule(data=st.data())
    def a_savepoint_is_written(self, data: st.DataObject) -> None:
        self.tell(e.Unpinned(data.draw(st.sampled_from(sorted(self.state.pinned)))))

    @precondition(lambda self: self.state.completed)
    @rule(data=st.data())
    def somebody_reads_state(self, data: st.DataObject) -> None:
        ids = [checkpoint.checkpoint_id for checkpoint in self.state.completed]
        self.tell(e.ReadBegun(data.draw(st.sampled_from(ids))))

    @precondition(lambda self: self.state.read)
    @rule(data=st.data())
    def a_reading_ends(self, data: st.DataObject) -> None:
        self.tell(e.ReadEnded(data.draw(st.sampled_from(sorted(self.state.read)))))

    @precondition(lambda self: self.attempts)
    @rule(luck=RARELY)
    def the_job_is_drained(self, luck: int) -> None:
        if luck == 5:
            self.tell(e.DrainBegun())

    @precondition(lambda self: self.todo)
    @rule(data=st.data(), works=st.sampled_from([True, True, True, False]), landed=st.booleans())
    def a_command_is_carried_out(self, data: st.DataObject, works: bool, landed: bool) -> None:
        command = self.todo.pop(data.draw(st.integers(0, len(self.todo) - 1)))
        self.carry_out(command, works, landed)

    def carry_out(self, command: e.Command, works: bool = True, landed: bool = True) -> None:
        match command:
            case e.SetUp(request) if works:
                self.ids.append(max(self.ids, default=0) + 1)
                self.tell(e.SetUpDone(request, self.ids[-1], NOON))
            case e.SetUp(request):
                self.tell(e.SetUpFailed(request, ERROR))
            case e.CallHook(hook, number):
                self.tell(e.HookAnswered(number, hook, b"state") if works else e.HookFailed(number, ERROR))
            case e.SendTrigger(attempt, number):
                assert number not in self.state.pending or not self.state.pending[number].silent_hooks
                task = next((t for t, a in self.attempts.items() if a == attempt), None)
                if works and task is not None:
                    self.triggered.append((task, attempt, number))
                    self.tell(e.TriggerTaken(number, attempt))
                else:
                    self.tell(e.TriggerFailed(number, attempt, ERROR))
            case e.WriteMetadata(checkpoint):
                if works or landed:
                    self.metadata[checkpoint.checkpoint_id] = checkpoint
                number = checkpoint.checkpoint_id
                self.tell(e.MetadataWritten(number) if works else e.MetadataFailed(number, ERROR))
            case e.NotifyComplete(attempt, _):
                number = owed_to(self.state, attempt)
                if number is not None and works:
                    for task in self.metadata[number].tasks:
                        self.confirmed[task.task_id] = frozenset(file.handle.file for file in task.files)
                    self.tell(e.TaskNotified(number, attempt))
                if owed_to(self.state, attempt) is not None:
                    self.todo.append(command)  # repeated later
            case e.NotifyAborted(attempt, number):
                self.triggered = [t for t in self.triggered if t[1:] != (attempt, number)]
            case e.DiscardMetadata(number):
                if works:
                    self.metadata.pop(number, None)
                    self.tell(e.MetadataDiscarded(number))
                else:
                    self.todo.append(command)
            case e.DeleteFiles(files) if works:
                self.files -= files
                self.tell(e.FilesDeleted(files))
            case e.DeleteFiles():
                self.todo.append(command)

    @rule(data=st.data(), steps=st.integers(3, 15))
    def all_goes_well_for_a_while(self, data: st.DataObject, steps: int) -> None:
        """Otherwise the random walk hardly ever completes two checkpoints."""
        for _ in range(steps):
            if self.todo and (not self.triggered or data.draw(st.booleans())):
                command = self.todo.pop(data.draw(st.integers(0, len(self.todo) - 1)))
                self.carry_out(command, not isinstance(command, e.WriteMetadata) or data.draw(RARELY) != 5)
            elif self.triggered:
                self.acknowledge(data)
            elif self.attempts:
                self.somebody_asks()
            elif may_restore(self.state):
                self.the_tasks_run_from_the_latest_checkpoint()

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def a_task_acknowledges(self, data: st.DataObject) -> None:
        self.acknowledge(data)

    def acknowledge(self, data: st.DataObject) -> None:
        """A task reuses files of the checkpoint confirmed last. A faulty task may name any file that ever existed."""
        task, attempt, number = self.triggered.pop(data.draw(st.integers(0, len(self.triggered) - 1)))
        faulty = data.draw(RARELY) == 5
        known = sorted(self.files_ever if faulty else self.confirmed[task])
        reuses = tuple(known[data.draw(st.integers(0, len(known))) :])
        writes = () if reuses and data.draw(st.booleans()) else None
        sent = snapshot(number, task, attempt, reuses=reuses, writes=writes)
        self.files.update(sent.physical_files)
        self.files_ever.update(sent.physical_files)
        self.sent.append(sent)
        self.tell(e.Acknowledged(sent))

    @rule()
    def orphans_are_swept(self) -> None:
        """A sweep may come at any moment, also while checkpoints are in flight. An orphan stays one."""
        found = orphans(self.state, {file: parse_physical_file(file) for file in self.files})
        assert self.suspects & self.files <= found
        gone = found & self.suspects
        self.files -= gone
        self.suspects = found - gone

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_acknowledgement_comes_twice(self, data: st.DataObject) -> None:
        self.tell(e.Acknowledged(data.draw(st.sampled_from(self.sent))))

    @precondition(lambda self: self.triggered)
    @rule(data=st.data(), luck=RARELY)
    def a_task_declines(self, data: st.DataObject, luck: int) -> None:
        if luck != 5:
            return
        _, attempt, number = self.triggered.pop(data.draw(st.integers(0, len(self.triggered) - 1)))
        self.tell(e.Declined(number, attempt, ERROR))

    @precondition(lambda self: self.attempts)
    @rule(luck=RARELY, survivor=st.sampled_from([A, B, None]))
    def a_task_fails(self, luck: int, survivor: TaskId | None) -> None:
        if luck == 5:
            self.failover(survivor)

    def failover(self, survivor: TaskId | None = None) -> None:
        """Stop all tasks, or only one region while the other runs on (R16)."""
        running = self.attempts or self.survivors
        self.attempts, self.survivors = {}, {t: a for t, a in running.items() if t == survivor}
        self.triggered = [t for t in self.triggered if t[1] in self.survivors.values()]
        self.tell(e.TasksStopped(frozenset(self.survivors.values())))

    @precondition(lambda self: self.survivors)
    @rule(luck=RARELY)
    def a_survivor_fails(self, luck: int) -> None:
        if luck == 5:
            self.failover()

    @precondition(lambda self: not self.attempts and may_restore(self.state))
    @rule()
    def the_tasks_run_from_the_latest_checkpoint(self) -> None:
        self.generation += 1
        fresh = [t for t in (A, B) if t not in self.survivors]
        self.attempts = self.survivors | {t: AttemptId(f"{t}{self.generation:031d}") for t in fresh}
        self.survivors = {}
        self.confirmed |= dict.fromkeys(fresh, frozenset())
        if self.state.completed:
            latest = self.state.completed[-1]
            self.tell(e.RestorePointTaken(latest.checkpoint_id))
            for task in latest.tasks:
                if task.task_id in fresh:
                    self.confirmed[task.task_id] = frozenset(file.handle.file for file in task.files)
        self.tell(e.TasksRunning(self.attempts))

    @rule(data=st.data(), luck=RARELY)
    def the_coordinator_is_killed(self, data: st.DataObject, luck: int) -> None:
        """Work that was under way may or may not have been done. Then the orphans are swept."""
        if luck != 5:
            return
        for command in self.todo:
            if data.draw(st.booleans()):
                match command:
                    case e.WriteMetadata(checkpoint):
                        self.metadata[checkpoint.checkpoint_id] = checkpoint
                    case e.DiscardMetadata(number):
                        self.metadata.pop(number, None)
                    case e.DeleteFiles(files):
                        self.files -= files
        self.files &= self.referenced()
        self.begin()

    # --- what must hold ------------------------------------------------------------------------------------------

    def referenced(self) -> frozenset[str]:
        return frozenset().union(*(checkpoint.physical_files() for checkpoint in self.metadata.values()))

    @invariant()
    def every_checkpoint_in_the_storage_can_be_restored(self) -> None:
        assert self.referenced() <= self.files

    @invariant()
    def the_registry_is_what_it_would_be_after_a_crash(self) -> None:
        """It counts what existing checkpoints refer to, and those that tasks may still refer to (F4)."""
        lingering = [d.checkpoint for d in self.state.doomed if d.checkpoint is not None]
        anew = Registry.of([*self.state.completed, *self.state.leaving.values(), *lingering])
        assert self.state.registry.live == anew.live
        assert self.state.registry.files == anew.files

    @invariant()
    def a_checkpoint_holds_the_state_of_every_hook(self) -> None:
        for checkpoint in self.metadata.values():
            assert tuple(hook.name for hook in checkpoint.hooks) == self.options.hooks

    @invariant()
    def never_more_in_flight_than_allowed(self) -> None:
        ordinary = [c for c in self.state.pending.values() if c.kind is not CheckpointKind.SAVEPOINT]
        assert len(ordinary) <= self.options.max_concurrent

    @invariant()
    def no_id_comes_twice(self) -> None:
        assert len(self.ids) == len(set(self.ids))

    @invariant()
    def the_latest_is_the_same_for_the_coordinator_and_for_one_after_a_crash(self) -> None:
        if may_restore(self.state):
            known = self.state.completed[-1].checkpoint_id if self.state.completed else None
            assert max(self.metadata, default=None) == known

    def teardown(self) -> None:
        """At the end nothing is left but what the retained checkpoints refer to."""
        self.attempts = {}
        self.triggered = []
        self.tell(e.TasksStopped())
        while self.todo:
            self.carry_out(self.todo.pop(0))
        assert self.state.pending == {}
        assert self.files == self.referenced()


CoordinatorModel.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestCoordinatorModel = CoordinatorModel.TestCase
