"""The election, the fences and the adoption, broken on purpose. The simulation must find each of these."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.ha.election import Confirmed, Election
from minflinkd.ha.elector import Elector
from minflinkd.ha.service import ClaimGone
from minflinkd.ha.zookeeper.ballot import EPOCH, ZooKeeperBallot, transact
from minflinkd.ha.zookeeper.cluster import ZooKeeperCluster
from minflinkd.ha.zookeeper.records import ZooKeeperRecords, _answered
from minflinkd.jobmaster.scheduler import reconciling
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.errors import MinflinkError
from tests.sim.election.drawing import drawn
from tests.sim.election.process import ProcessClock
from tests.sim.election.run import attempt, reduced
from tests.sim.planting import Planted, patched
from tests.sim.protocol.planted_job_master import tasks_of_another_version_are_adopted
from tests.sim.protocol.run import Verdict


def _a_leader_acts_after_its_lease() -> Any:
    return patched(Election, "lease_ends", lambda _: property(lambda s: s.confirmed_at + 2.0 * s.timing.lease))


def _the_lease_counts_from_the_answer() -> Any:
    def made(_: Any) -> Any:
        async def confirm(elector: Any, claim: int) -> None:
            await elector._ballot.confirm()
            elector._driver.feed(Confirmed(claim, elector._clock.monotonic()))

        return confirm

    return patched(Elector, "_confirm", made)


def _the_clock_stands_still_while_the_process_is_stopped() -> Any:
    def made(monotonic: Any) -> Any:
        return lambda clock: monotonic(clock) - clock.process.stood_still

    return patched(ProcessClock, "monotonic", made)


def _one_server_says_whether_the_claim_is_there() -> Any:
    def made(_: Any) -> Any:
        async def confirm(ballot: Any) -> None:
            if await ballot._session.call("exists", f"{ballot._election}/{ballot._claim}") is None:
                raise ClaimGone("the claim is not in ZooKeeper any more")

        return confirm

    return patched(ZooKeeperBallot, "confirm", made)


def _a_claim_is_withdrawn_once() -> Any:
    def made(_: Any) -> Any:
        async def leave(elector: Any, _: int) -> None:
            with contextlib.suppress(MinflinkError):
                await elector._ballot.withdraw()

        return leave

    return patched(Elector, "_leave", made)


def _an_epoch_is_used_twice() -> Any:
    def made(_: Any) -> Any:
        async def record(ballot: Any) -> int:
            node = f"{ballot._root}/{EPOCH}"
            if await ballot._session.call("exists", node) is None:
                await ballot._fenced(("create", node, b"1"))
            data, _ = await ballot._session.call("get", node)
            return int(data)

        return record

    return patched(ZooKeeperBallot, "record", made)


def _records_are_written_without_a_check_of_the_claim() -> Any:
    def made(_: Any) -> Any:
        async def fenced(records: Any, *operations: Any) -> None:
            await _answered(lambda: records._session.transact(*operations))

        return fenced

    return patched(ZooKeeperRecords, "_fenced", made)


def _the_fence_is_that_of_the_latest_leadership() -> Any:
    """A write that one leadership has left under way passes the check of the next one of the same daemon."""

    def made(records_of: Any) -> Any:
        def careless(cluster: Any, cluster_id: str, epoch: int) -> Any:
            found = records_of(cluster, cluster_id, epoch)
            records = found._records

            async def fenced(*operations: Any) -> None:
                await _answered(lambda: transact(records._session, cluster.ballot.fence, *operations))

            records._fenced = fenced
            return found

        return careless

    return patched(ZooKeeperCluster, "records", made)


def _a_leader_that_may_not_act_sends() -> Any:
    def made(_: Any) -> Any:
        return lambda network, target: network._routes.get(target, network._default)

    return patched(LocalNetwork, "route_to", made)


def _a_takeover_begins_with_the_checkpoint_before_the_latest() -> Any:
    """What the latest one has published is published again."""

    def made(recover: Any) -> Any:
        async def forgetful(store: Any) -> Any:
            found = await recover(store)
            return replace(found, completed=found.completed[:-1])

        return forgetful

    return patched(CheckpointStore, "recover", made)


def _nothing_is_adopted() -> Any:
    return patched(reconciling, "_is_current", lambda _: lambda *_: False)


FAULTS: Mapping[str, Planted] = {
    "a leader acts after its lease": _a_leader_acts_after_its_lease,
    "the lease counts from the answer": _the_lease_counts_from_the_answer,
    "the clock stands still in a stopped process": _the_clock_stands_still_while_the_process_is_stopped,
    "one server says whether the claim is there": _one_server_says_whether_the_claim_is_there,
    "a claim is withdrawn once": _a_claim_is_withdrawn_once,
    "an epoch is used twice": _an_epoch_is_used_twice,
    "records are written without a check of the claim": _records_are_written_without_a_check_of_the_claim,
    "a write of an earlier leadership counts": _the_fence_is_that_of_the_latest_leadership,
    "a leader sends that may not act": _a_leader_that_may_not_act_sends,
    "adopted tasks of the wrong version": tasks_of_another_version_are_adopted,
    "a published checkpoint is published again": _a_takeover_begins_with_the_checkpoint_before_the_latest,
    "nothing is adopted": _nothing_is_adopted,
}


def find(name: str, within: int, *, told: bool = True) -> Verdict | None:
    """Return the first seed that breaks with this fault, reduced if it is `told`. None if no seed does."""
    fault = FAULTS[name]
    for seed in range(within):
        plan = drawn(seed)
        verdict = attempt(plan, fault)
        if verdict.violation:
            return reduced(plan, verdict, fault) if told else verdict
    return None
