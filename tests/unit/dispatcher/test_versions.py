"""The versions of a job, tested with lists of events. With events and crashes in any order, exactly one counts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.versions import Command, Version, Versions, step
from minflinkd.jobgraph.model import JobGraph, Vertex
from minflinkd.rpc.jobs import Rescaled, RestartState
from minflinkd.runtime.errors import Conflict, ErrorInfo
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated

BOOM = ErrorInfo(code="user-code", message="boom")


def graph(number: int) -> JobGraph:
    return JobGraph(name=f"version {number}", vertices=())


def only(commands: tuple[Command, ...]) -> Command | None:
    assert len(commands) <= 1
    return commands[0] if commands else None


class Job:
    """Feeds the machine with events."""

    def __init__(self) -> None:
        self.state = Versions(current=Version(graph=graph(0)))
        self.now = 1_000

    def feed(self, event: v.Event) -> Command | None:
        self.now += 100
        self.state, commands = step(self.state, event, self.now / 1000)
        v.check_invariants(self.state)
        return only(commands)

    @property
    def counts(self) -> str:
        return self.state.current.graph.name

    @property
    def last(self) -> RestartState:
        return self.state.past[-1].state


@pytest.fixture
def job() -> Job:
    return Job()


def starting(job: Job) -> None:
    job.feed(v.Requested(graph(1)))
    job.feed(v.StoodDown(7))


def test_a_version_with_other_slots_takes_over_the_tasks_as_they_run(job: Job) -> None:
    """Nothing has stopped, and the record says so. Whoever brings the job up finds the new version (H6, H8)."""
    job.feed(v.Requested(graph(1)))
    assert job.feed(v.StoodDown(7, tasks_run=True)) is Command.TAKE_OVER
    assert (job.counts, job.state.current.base) == ("version 1", 7)
    restart = job.state.restart
    assert restart is not None
    assert "handed_over" in restart.phases
    assert "stopped" not in restart.phases


def test_a_new_version_counts_once_the_old_one_has_made_way(job: Job) -> None:
    """The steps are checkpoint, stop, switch, start and first checkpoint (H3). The time of each is recorded (H10)."""
    assert job.feed(v.Requested(graph(1))) is Command.TAKE_CHECKPOINT_AND_STAND_DOWN
    assert job.counts == "version 0"
    assert job.feed(v.StoodDown(7)) is Command.BRING_UP
    assert (job.counts, job.state.current.base) == ("version 1", 7)
    assert job.feed(v.Running({"slots": 1_250})) is None
    assert job.feed(v.Proven(8)) is None
    assert (job.last, job.state.restart) == (RestartState.COMPLETED, None)
    record = job.state.past[-1]
    assert record.phases == {"stopped": 0.1, "slots": 0.15, "running": 0.2, "first_checkpoint": 0.3}
    assert record.checkpoint_id == 7


def test_it_is_kept_whether_the_sinks_of_the_version_before_have_committed(job: Job) -> None:
    """Whoever starts the new version knows it, also another daemon (J13)."""
    job.feed(v.Requested(graph(1)))
    job.feed(v.StoodDown(7, published=True))
    assert job.state.current.base_published
    job.feed(v.Disproved(BOOM))
    job.feed(v.StoodDown(7))
    assert not job.state.current.base_published, "of the version before that"


def test_a_version_that_fails_before_its_first_checkpoint_gives_way_to_the_one_before_it(job: Job) -> None:
    """H7."""
    starting(job)
    assert job.feed(v.Disproved(BOOM)) is Command.STAND_DOWN
    assert job.counts == "version 1"
    assert job.feed(v.StoodDown(7)) is Command.BRING_UP
    assert (job.counts, job.last, job.state.past[-1].error) == ("version 0", RestartState.ROLLED_BACK, BOOM)


def test_a_version_that_fails_just_behind_its_first_checkpoint_stays(job: Job) -> None:
    """The old version could not read what the new one has written (H7)."""
    starting(job)
    job.feed(v.Disproved(BOOM))
    assert job.feed(v.StoodDown(8)) is Command.BRING_UP
    assert (job.counts, job.last) == ("version 1", RestartState.COMPLETED)


def test_a_version_that_does_not_make_way_goes_on(job: Job) -> None:
    """If the old version does not make way, it goes on and the hot restart has failed (H3a)."""
    job.feed(v.Requested(graph(1)))
    assert job.feed(v.NotStoodDown(BOOM)) is Command.GO_ON
    assert (job.counts, job.last) == ("version 0", RestartState.FAILED)


def test_a_second_request_conflicts_unless_it_is_to_take_the_place_of_the_first(job: Job) -> None:
    """H9."""
    job.feed(v.Requested(graph(1)))
    with pytest.raises(Conflict):
        job.feed(v.Requested(graph(2)))
    assert job.feed(v.Requested(graph(2), replace=True)) is None, "the old version makes way already"
    assert job.last is RestartState.REPLACED
    job.feed(v.StoodDown(7))
    assert job.counts == "version 2"


def test_a_version_that_takes_the_place_of_one_on_trial_falls_back_behind_that_one(job: Job) -> None:
    """A version that was never proven is nothing to return to (H7, H9)."""
    starting(job)
    assert job.feed(v.Requested(graph(2), replace=True)) is Command.STAND_DOWN
    job.feed(v.StoodDown(7))
    assert job.counts == "version 2"
    job.feed(v.Disproved(BOOM))
    job.feed(v.StoodDown(7))
    assert job.counts == "version 0"


def test_a_version_that_finds_no_input_stays_on_trial_with_the_one_before_it_stored(job: Job) -> None:
    """A version without input has proven nothing yet.

    A failure hours later still brings back the one before it (H7).
    """
    starting(job)
    job.feed(v.Running())
    assert job.feed(v.Idle()) is None
    assert v.shown(job.state)[0].state is RestartState.ON_TRIAL
    assert not RestartState.ON_TRIAL.over
    assert job.feed(v.Idle()) is None, "also under another JobMaster"
    job.now += 6 * 3_600_000
    assert job.feed(v.Disproved(BOOM)) is Command.STAND_DOWN
    assert job.feed(v.StoodDown(7)) is Command.BRING_UP
    assert (job.counts, job.last) == ("version 0", RestartState.ROLLED_BACK)


def test_a_version_on_trial_without_input_is_proven_by_its_first_checkpoint(job: Job) -> None:
    """A version on trial is proven by its first checkpoint, even without input (H7)."""
    starting(job)
    job.feed(v.Idle())
    assert job.feed(v.Proven(7)) is None, "that one is of the version before it"
    assert v.shown(job.state)[0].state is RestartState.ON_TRIAL
    job.feed(v.Proven(8))
    assert (job.counts, job.last) == ("version 1", RestartState.COMPLETED)


def test_another_version_takes_the_place_of_one_that_waits_for_input(job: Job) -> None:
    """A job without input may be changed as often as one likes. It returns to the last proven version (H9)."""
    starting(job)
    job.feed(v.Idle())
    assert job.feed(v.Requested(graph(2))) is Command.STAND_DOWN
    assert job.last is RestartState.REPLACED
    job.feed(v.StoodDown(7))
    job.feed(v.Idle())
    assert job.counts == "version 2"
    job.feed(v.Disproved(BOOM))
    job.feed(v.StoodDown(7))
    assert job.counts == "version 0"


def test_a_request_that_comes_as_the_trial_is_won_goes_back_to_the_version_that_won_it(job: Job) -> None:
    """The winner's checkpoint was complete before it stood down (H7, H9)."""
    starting(job)
    job.feed(v.Idle())
    job.feed(v.Requested(graph(2)))
    job.feed(v.StoodDown(8))
    job.feed(v.Disproved(BOOM))
    job.feed(v.StoodDown(8))
    assert job.counts == "version 1"


def test_a_trial_goes_on_under_another_daemon(job: Job) -> None:
    """H8."""
    starting(job)
    job.feed(v.Idle())
    assert v.durable(job.state).restart is not None
    assert job.feed(v.Recovered(7)) is None
    assert v.shown(job.state)[0].state is RestartState.ON_TRIAL
    job.feed(v.Recovered(8))
    assert job.last is RestartState.COMPLETED


def test_only_a_version_that_has_never_run_is_overdue(job: Job) -> None:
    """The limit is hot-restart.timeout. A version on trial that restarts may take as long as the cluster needs (H7)."""
    starting(job)
    assert job.feed(v.Overdue(BOOM)) is Command.STAND_DOWN
    job = Job()
    starting(job)
    job.feed(v.Running())
    assert job.feed(v.Overdue(BOOM)) is None
    job.feed(v.Idle())
    job.state = v.durable(job.state)
    assert job.feed(v.Overdue(BOOM)) is None, "under another daemon, too"


def test_a_job_that_ends_in_a_version_on_trial_ends_its_hot_restart(job: Job) -> None:
    """A cancelled version has proven nothing. One that was stopped with a savepoint completed a checkpoint (H3a)."""
    for finished, outcome in ((False, RestartState.ABANDONED), (True, RestartState.COMPLETED)):
        starting(job)
        job.feed(v.Idle())
        assert job.feed(v.Ended(finished=finished)) is None
        assert job.last is outcome


def test_a_hot_restart_that_the_daemon_did_not_survive_leaves_the_version_that_counts(job: Job) -> None:
    """Before the switch, the old version goes on. After it, the new version is still on trial (H8)."""
    job.feed(v.Requested(graph(1)))
    assert job.feed(v.Recovered(6)) is None
    assert (job.counts, job.last) == ("version 0", RestartState.FAILED)
    starting(job)
    assert job.feed(v.Recovered(7)) is None
    assert job.state.restart is not None
    assert job.feed(v.Recovered(8)) is None
    assert (job.counts, job.last) == ("version 1", RestartState.COMPLETED)


def test_a_job_that_ends_abandons_its_hot_restart(job: Job) -> None:
    """The end of a job abandons its hot restart (H3a)."""
    starting(job)
    assert job.feed(v.Ended()) is None
    assert job.last is RestartState.ABANDONED
    assert job.feed(v.Disproved(BOOM)) is None
    starting(job)
    job.feed(v.Ended(finished=True))
    assert job.last is RestartState.COMPLETED


HANDING_OVER = (v.Requested(graph(1)),)
STARTING = (*HANDING_OVER, v.StoodDown(7))
ON_TRIAL = (*STARTING, v.Idle())
TURNING_BACK = (*STARTING, v.Disproved(BOOM))
NEXT = v.Requested(graph(2), replace=True)
WAYS: tuple[tuple[v.Event, ...], ...] = (
    STARTING,
    (*HANDING_OVER, v.NotStoodDown(BOOM)),
    (*STARTING, NEXT, v.Recovered(7)),
    *((*way, last) for way in (HANDING_OVER, STARTING, ON_TRIAL, TURNING_BACK) for last in (NEXT, v.Ended())),
    ON_TRIAL,
    TURNING_BACK,
    (*STARTING, v.Proven(8)),
    (*ON_TRIAL, v.Proven(8)),
    (*ON_TRIAL, v.Disproved(BOOM)),
    (*TURNING_BACK, v.StoodDown(7)),
    (*TURNING_BACK, v.StoodDown(8)),
)


def test_every_move_of_the_table_happens(job: Job) -> None:
    """A move that nothing makes would only hide a bug (A3)."""
    moves = set()
    for way in WAYS:
        job = Job()
        for event in way:
            before = job.state
            job.feed(event)
            if before.restart is not None:
                number = before.restart.number
                after = next(shown for shown in v.shown(job.state) if shown.number == number)
                moves |= {(before.restart.phase, after.state)} - {(after.state, after.state)}
    assert moves == {(source, target) for source, targets in v.LEGAL.items() for target in targets}


def test_no_other_move_is_made(job: Job) -> None:
    """A restart that has ended is not taken up again (A3)."""
    starting(job)
    restart = job.state.restart
    assert restart is not None
    with pytest.raises(IllegalTransition, match="hot restart 1: STARTING -> HANDING_OVER"):
        restart.to(RestartState.HANDING_OVER)
    with pytest.raises(IllegalTransition, match="COMPLETED may become nothing"):
        restart.to(RestartState.COMPLETED).to(RestartState.STARTING)


def test_a_state_that_must_not_exist_is_found(job: Job) -> None:
    """Whoever stores the versions checks them first (H8)."""
    starting(job)
    good = job.state
    assert good.restart is not None
    completed = good.restart.to(RestartState.COMPLETED)
    for why, restart, past in (
        ("a version on trial has none before it to go back to", replace(good.restart, old=None), ()),
        ("the version that starts is not the one that was asked for", replace(good.restart, target=graph(9)), ()),
        ("the restart under way has ended: completed", completed, ()),
        ("restart 2 is under way, and 1 were requested", replace(good.restart, number=2), ()),
        ("a restart that has ended is later than the one under way", good.restart, (v.record(completed),)),
        ("a restart among the ended ones has not ended", good.restart, (v.record(good.restart),)),
    ):
        with pytest.raises(InvariantViolated, match=f"^{why}$"):
            v.check_invariants(replace(good, restart=restart, past=past))


class AnyOrder(RuleBasedStateMachine):
    """A daemon that may die between any two steps. The store and the cluster survive it.

    `stored` is what the daemon finds when it comes back. `running` is the version whose tasks run. `made` says which
    version completed each checkpoint.
    """

    @initialize()
    def begin(self) -> None:
        self.stored = Versions(current=Version(graph=graph(0)))
        self.memory = self.stored
        self.command: Command | None = None
        self.running: str | None = "version 0"
        self.made = {1: "version 0"}
        self.requests = 0
        self.now = 0

    @property
    def latest(self) -> int:
        return max(self.made)

    def feed(self, event: v.Event, *, dies: str = "") -> None:
        """Feed an event.

        `dies` makes the daemon die before the new state is stored, or after it and before any command.
        """
        self.now += 10
        try:
            state, commands = step(self.memory, event, self.now / 1000)
        except Conflict:
            return
        v.check_invariants(state)
        command = only(commands)
        if dies != "before":
            if v.durable(state) != v.durable(self.memory):
                self.stored = state
            self.memory, self.command = state, command or self.command
        if dies:
            self.recover()

    def recover(self) -> None:
        """Start another daemon. It ends what earlier JobMasters deployed, then starts its own (R13)."""
        self.memory, self.command = self.stored, None
        self.running = self.memory.current.graph.name
        self.feed(v.Recovered(self.latest))

    deaths = st.sampled_from(["", "", "", "before", "after"])

    @rule(replace=st.booleans(), final=st.booleans(), dies=deaths)
    def request(self, replace: bool, final: bool, dies: str) -> None:
        self.requests += 1
        self.feed(v.Requested(graph(self.requests), final=final, replace=replace), dies=dies)

    @precondition(lambda self: self.command in (Command.STAND_DOWN, Command.TAKE_CHECKPOINT_AND_STAND_DOWN))
    @rule(succeeds=st.booleans(), dies=deaths)
    def stand_down(self, succeeds: bool, dies: str) -> None:
        command, self.command = self.command, None
        if command is Command.TAKE_CHECKPOINT_AND_STAND_DOWN and succeeds and self.running is not None:
            self.made[self.latest + 1] = self.running
        if succeeds:
            self.running = None
        self.feed(v.StoodDown(self.latest) if succeeds else v.NotStoodDown(BOOM), dies=dies)

    @precondition(lambda self: self.command is Command.BRING_UP)
    @rule()
    def bring_up(self) -> None:
        assert self.running is None, "no version comes up beside another"
        self.command, self.running = None, self.memory.current.graph.name

    @precondition(lambda self: self.command is Command.GO_ON)
    @rule()
    def go_on(self) -> None:
        self.command, self.running = None, self.memory.current.graph.name

    @precondition(lambda self: self.running is not None)
    @rule(told=st.booleans(), dies=deaths)
    def checkpoint(self, told: bool, dies: str) -> None:
        """A version may fail, or the daemon die, before the daemon hears of its checkpoint."""
        assert self.running is not None
        self.made[self.latest + 1] = self.running
        if told:
            self.feed(v.Running())
            self.feed(v.Proven(self.latest), dies=dies)

    @precondition(lambda self: self.running is not None)
    @rule(dies=deaths)
    def fail(self, dies: str) -> None:
        self.feed(v.Disproved(BOOM), dies=dies)

    @precondition(lambda self: self.running is not None)
    @rule(dies=deaths)
    def find_no_input(self, dies: str) -> None:
        self.feed(v.Idle(), dies=dies)

    @rule()
    def die(self) -> None:
        self.recover()

    @invariant()
    def the_version_that_runs_is_the_one_that_counts(self) -> None:
        """Only the version that counts may run (H8)."""
        v.check_invariants(self.memory)
        if self.running is not None:
            assert self.running == self.memory.current.graph.name
        assert self.running is not None or self.command is not None, "none runs, and nobody brings one up"

    @invariant()
    def the_version_that_counts_can_read_the_last_checkpoint(self) -> None:
        """The checkpoint is the version's own, or is known to be of an earlier version (C25)."""
        for state in (self.memory, self.stored):
            current = state.current
            assert self.made[self.latest] == current.graph.name or self.latest <= current.base

    def teardown(self) -> None:
        """Without further faults, every hot restart ends and a version runs."""
        if not hasattr(self, "memory"):
            return
        for _ in range(10):
            if self.command in (Command.STAND_DOWN, Command.TAKE_CHECKPOINT_AND_STAND_DOWN):
                self.stand_down(succeeds=True, dies="")
            elif self.command is Command.BRING_UP:
                self.bring_up()
            elif self.command is Command.GO_ON:
                self.go_on()
            elif self.memory.restart is not None:
                self.checkpoint(told=True, dies="")
        assert self.memory.restart is None
        self.the_version_that_runs_is_the_one_that_counts()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_restart_records_whose_parallelism_it_changes() -> None:
    """Vertices of both versions count, whether the job or the vertex says how parallel they are."""
    before = JobGraph(name="job", parallelism=2, vertices=tuple(Vertex(id=VertexId(n)) for n in "abc"))
    after = JobGraph(
        name="job", parallelism=4, vertices=(Vertex(id=VertexId("a"), parallelism=2), *before.vertices[1:2])
    )
    assert v.rescaled(before, after) == (Rescaled(VertexId("b"), 2, 4),)
    state, _ = step(Versions(current=Version(graph=before)), v.Requested(after), 1.0)
    assert v.shown(state)[0].rescaled == (Rescaled(VertexId("b"), 2, 4),)
