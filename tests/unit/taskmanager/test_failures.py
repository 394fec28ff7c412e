"""How an exception on the Python side of a session is classified."""

from __future__ import annotations

from minflinkd.runtime.errors import Kind
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.taskmanager.session.spark.failures import batch_failure, input_failure


def test_a_failure_in_a_micro_batch_may_be_due_to_a_record() -> None:
    """Only such failures come with the files and offsets that were read, and only such are the job's own."""
    assert batch_failure(ValueError("seven is poison")).kind is Kind.JOB
    assert batch_failure(StorageUnavailable("away")).kind is Kind.STORAGE
    assert input_failure(OSError("away")).kind is Kind.JOB
