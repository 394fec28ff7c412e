import pytest

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.references import NotReferenced, References
from minflinkd.runtime.ids import JobId

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
KEY, SECOND = BlobKey.new(BlobKind.PERMANENT, "0" * 64), BlobKey.new(BlobKind.PERMANENT, "1" * 64)


def test_the_last_release_says_that_nobody_needs_the_blob() -> None:
    """B15"""
    references = References()
    references.acquire((JOB, KEY))
    references.acquire((JOB, KEY))
    assert [references.release((JOB, KEY)), references.release((JOB, KEY))] == [False, True]
    assert references.count((JOB, KEY)) == 0


def test_a_jobs_directory_is_needed_while_one_of_its_blobs_is() -> None:
    """B15"""
    references = References()
    for blob in ((JOB, KEY), (JOB, KEY), (JOB, SECOND), (OTHER, KEY)):
        references.acquire(blob)
    counts = [references.count_of_job(JOB)]
    for key in (KEY, SECOND, KEY):
        references.release((JOB, key))
        counts.append(references.count_of_job(JOB))
    assert counts == [3, 2, 1, 0]
    assert (references.count((OTHER, KEY)), references.count_of_job(OTHER)) == (1, 1)


def test_one_release_too_many_is_a_bug() -> None:
    references = References()
    references.acquire((JOB, KEY))
    with pytest.raises(NotReferenced):
        references.release((JOB, SECOND))
    references.release((JOB, KEY))
    with pytest.raises(NotReferenced):
        references.release((JOB, KEY))
