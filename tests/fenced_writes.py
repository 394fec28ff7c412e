"""The history of all writes of a cluster's daemons, as ZooKeeper has recorded it: who led at each of them (A11a, A17).

writes = history("/minflinkd/cluster", transactions(directory))
assert writes.faults == []
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minflinkd.ha.zookeeper.ballot import ELECTION, EPOCH
from minflinkd.ha.zookeeper.records import RECORDS
from tests.servers.zookeeper_log import Operation, Transaction


@dataclass
class Writes:
    """`root`: the cluster's node. `faults`: each write that did not come from the one leader of that moment."""

    root: str
    faults: list[str] = field(default_factory=list)
    leaders: list[str] = field(default_factory=list)  # their claims, in the order of their epochs
    written: dict[str, int] = field(default_factory=dict)  # by claim: how many records it has written or deleted
    claims: dict[str, int] = field(default_factory=dict)  # those that exist now, with the session of each
    epoch: int = 0

    def take(self, transaction: Transaction) -> None:
        """Take in the next transaction."""
        mine = [operation for operation in transaction.operations if operation.path.startswith(f"{self.root}/")]
        counting = [operation for operation in mine if self._counts(operation)]
        if counting:
            self._take_write(transaction, mine, counting)
        for operation in mine:
            parent, _, name = operation.path.rpartition("/")
            if parent == f"{self.root}/{ELECTION}" and operation.kind == "create":
                self.claims[name] = transaction.session
            elif parent == f"{self.root}/{ELECTION}" and operation.kind == "delete":
                self.claims.pop(name, None)
        if transaction.closed:  # its claims end, whether the log lists them or not
            self.claims = {name: owner for name, owner in self.claims.items() if owner != transaction.session}

    def _counts(self, operation: Operation) -> bool:
        """Whether it changes something that a leader alone may change. Empty nodes are directories."""
        if operation.kind == "check":
            return False
        if operation.path == f"{self.root}/{EPOCH}":
            return True
        below = operation.path.startswith(f"{self.root}/{RECORDS}/")
        return below and not (operation.kind == "create" and not operation.data)

    def _take_write(self, transaction: Transaction, mine: list[Operation], counting: list[Operation]) -> None:
        def fault(what: str) -> None:
            paths = ", ".join(f"{operation.kind} {operation.path}" for operation in counting)
            self.faults.append(f"zxid {transaction.zxid:#x}: {what}: {paths}")

        checked = [operation.path.rpartition("/")[2] for operation in mine if operation.kind == "check"]
        if not transaction.several or len(checked) != 1 or mine[0].kind != "check":
            fault("written without a check of one claim")
            return
        (claim,) = checked
        if claim not in self.claims:
            fault(f"the claim {claim} does not exist")
        elif claim != min(self.claims, key=_number):
            fault(f"the claim {claim} is not the first one")
        elif self.claims[claim] != transaction.session:
            fault(f"the claim {claim} is that of another daemon")
        for operation in counting:
            if operation.path != f"{self.root}/{EPOCH}":
                if self.leaders[-1:] != [claim]:
                    fault(f"the claim {claim} has not the last epoch")
                self.written[claim] = self.written.get(claim, 0) + 1
            elif operation.kind == "set":
                if int(operation.data) != self.epoch + 1:
                    fault(f"the epoch {int(operation.data)} comes after {self.epoch}")
                self.epoch = int(operation.data)
                self.leaders.append(claim)


def history(root: str, recorded: Iterable[Transaction]) -> Writes:
    """Return what the daemons of a cluster have written."""
    writes = Writes(root)
    for transaction in recorded:
        writes.take(transaction)
    return writes


def _number(claim: str) -> int:
    return int(claim[-10:])
