import pytest

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.references import NotReferenced, References
from minflinkd.runtime.ids import JobId

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
KEY = BlobKey.new(BlobKind.PERMANENT, "0" * 64)


def test_the_last_release_says_that_nobody_needs_the_blob() -> None:
    """B15"""
    references = References()
    references.acquire((JOB, KEY))
    references.acquire((JOB, KEY))
    assert [references.release((JOB, KEY)), references.release((JOB, KEY))] == [False, True]
    assert references.count((JOB, KEY)) == 0


def test_jobs_do_not_share_counts() -> None:
    references = References()
    references.acquire((JOB, KEY))
    references.acquire((OTHER, KEY))
    references.forget_job(JOB)
    assert (references.count((JOB, KEY)), references.count((OTHER, KEY))) == (0, 1)


def test_one_release_too_many_is_a_bug_unless_the_job_was_forgotten() -> None:
    references, second = References(), BlobKey.new(BlobKind.PERMANENT, "1" * 64)
    references.acquire((JOB, KEY))
    with pytest.raises(NotReferenced):
        references.release((JOB, second))
    references.forget_job(JOB)
    assert references.release((JOB, KEY))
