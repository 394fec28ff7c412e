"""What must hold at every instant, whoever leads. Each check raises Violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.ha.election import LEADS
from minflinkd.ha.zookeeper.ballot import ELECTION, EPOCH
from minflinkd.rpc import messages as m
from minflinkd.runtime.ids import JobId
from tests.sim.election.daemon import Daemon, Leadership
from tests.sim.election.zookeeper import Applied
from tests.sim.protocol.journal import Violation

if TYPE_CHECKING:
    from tests.sim.election.task_manager import ElectionTaskManager
    from tests.sim.election.world import ElectionWorld

ROOT = "/minflinkd/default"
RECORDS = f"{ROOT}/records/"


class Rules:
    def __init__(self, world: ElectionWorld) -> None:
        self._world = world
        self._epochs: dict[int, str] = {}  # who led with each
        self._recorded = 0  # the last one in the service
        self.ran: set[JobId] = set()  # jobs of which all tasks were seen to run

    def _broken(self, told: str) -> Violation:
        """End the run, even if the code that is called from here keeps the error to itself."""
        violation = Violation(told)
        self._world.universe.engine.after(0.0, _raise, violation)
        return violation

    # --- one leader --------------------------------------------------------------------------------------------------

    def turned(self) -> None:
        """At no instant two daemons believe that they may act."""
        acting = [daemon for daemon in self._world.daemons if daemon.acts]
        if len(acting) > 1:
            raise self._broken(f"TWO daemons believe that they may act: {acting}")

    def leads(self, leadership: Leadership) -> None:
        epoch, name = leadership.epoch, leadership.daemon.name
        if epoch in self._epochs:
            raise self._broken(f"EPOCH {epoch} is used twice: by {self._epochs[epoch]} and by {name}")
        self._epochs[epoch] = name

    def applied(self, applied: Applied) -> None:
        """What counts was written by the daemon whose claim is first, and by no other (A11a)."""
        for name, path, *arguments in applied.operations:
            is_record = path.startswith(RECORDS) and (name != "create" or arguments[0] != b"")  # not a directory
            if name == "check" or not (is_record or path == f"{ROOT}/{EPOCH}"):
                continue
            daemon = self._writer(applied.session)
            if self._first_claim() != applied.session:
                raise self._broken(f"a WRITE of {daemon} counts, and its claim is not the first: {name} {path}")
            if others := [other for other in self._world.daemons if other.name != daemon and other.acts]:
                raise self._broken(f"a WRITE of {daemon} counts while {others} may act: {name} {path}")
            if path == f"{ROOT}/{EPOCH}" and name == "set_data":
                epoch = int(arguments[0])
                if epoch <= self._recorded:
                    raise self._broken(f"EPOCH {epoch} is recorded after {self._recorded}")
                self._recorded = epoch

    def counts(self, leadership: Leadership, what: str) -> None:
        """Nothing that a leader has left under way counts when another one has begun (A11a)."""
        if self._recorded > leadership.epoch:
            raise self._broken(
                f"a WRITE of epoch {leadership.epoch} counts, {what}, and epoch {self._recorded} has begun"
            )

    def _writer(self, session: int) -> str:
        sessions = {d.client.session.number: d.name for d in self._world.daemons if d.client.session is not None}
        return sessions.get(session, f"session {session}")

    def _first_claim(self) -> int:
        """Return the session whose claim is the first; 0 if there is none."""
        election = f"{ROOT}/{ELECTION}/"
        nodes = self._world.ensemble.nodes.items()
        return min(((path[-10:], node.owner) for path, node in nodes if path.startswith(election)), default=("", 0))[1]

    def crashed(self, error: Exception) -> NoReturn:
        raise self._broken(f"the elector crashed: {error!r}")

    # --- what a leader sends -----------------------------------------------------------------------------------------

    def certain(self, daemon: Daemon, what: str) -> None:
        """A leader that may not act sends nothing (A11). This is decided without the machine's own opinion."""
        state, now = daemon.elector.state, daemon.process.time()
        if state.phase not in LEADS or now >= state.lease_ends:
            raise self._broken(f"{daemon} sends {what}, and MAY NOT ACT since {now - state.lease_ends:.3f} s")

    # --- tasks -------------------------------------------------------------------------------------------------------

    def starts(self, tm: ElectionTaskManager, deployment: m.DeployTask) -> None:
        """In a quiet plan, no task of a job that ran is started again (A14a, A14b, A16)."""
        if self._world.plan.quiet and deployment.job.job_id in self.ran:
            raise self._broken(f"{tm.address} RESTARTS {deployment.task.id}, which nothing has stopped")

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def restorable(self, job_id: JobId, point: CompletedCheckpoint) -> None:
        """What a restart needs is there, and it begins with all that was published."""
        place = self._world.checkpoints_of(job_id)
        objects = self._world.storage.objects
        if gone := sorted(file for file in point.physical_files() if place.child(file).path not in objects):
            raise self._broken(f"checkpoint {point.checkpoint_id} needs {gone}, which are DELETED")
        for task in point.tasks:
            rows = self._world.published.rows(job_id, task.task_id)
            if rows > task.batch_id:
                raise self._broken(
                    f"{task.task_id} restarts with {task.batch_id} rows of checkpoint {point.checkpoint_id}, and "
                    f"{rows} are PUBLISHED"
                )

    def deleted(self, path: str) -> None:
        """Nothing is deleted that belongs to a checkpoint which is complete."""
        if self._world.is_complete(path):
            raise self._broken(f"{path} is DELETED, and its checkpoint is complete")
        for metadata, files in self._world.storage.files.items():
            if path in files and self._world.is_complete(metadata):
                raise self._broken(f"{path} is DELETED, and {metadata} needs it")


def _raise(violation: Violation) -> None:
    raise violation
