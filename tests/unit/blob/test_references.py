import pytest

from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.references import NotReferenced, References
from minflinkd.runtime.ids import JobId

JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
KEY, SECOND = BlobKey.new(BlobKind.PERMANENT, "0" * 64), BlobKey.new(BlobKind.PERMANENT, "1" * 64)


def test_the_last_release_says_that_nobody_needs_the_blob() -> None:
    """B15"""
    references = References()
    references.acquire(Blob(JOB, KEY))
    references.acquire(Blob(JOB, KEY))
    assert [references.release(Blob(JOB, KEY)), references.release(Blob(JOB, KEY))] == [False, True]
    assert references.count(Blob(JOB, KEY)) == 0


def test_a_jobs_directory_is_needed_while_one_of_its_blobs_is() -> None:
    """B15"""
    references = References()
    for blob in (Blob(JOB, KEY), Blob(JOB, KEY), Blob(JOB, SECOND), Blob(OTHER, KEY)):
        references.acquire(blob)
    counts = [references.count_of_job(JOB)]
    for key in (KEY, SECOND, KEY):
        references.release(Blob(JOB, key))
        counts.append(references.count_of_job(JOB))
    assert counts == [3, 2, 1, 0]
    assert (references.count(Blob(OTHER, KEY)), references.count_of_job(OTHER)) == (1, 1)


def test_one_release_too_many_is_a_bug() -> None:
    references = References()
    references.acquire(Blob(JOB, KEY))
    with pytest.raises(NotReferenced):
        references.release(Blob(JOB, SECOND))
    references.release(Blob(JOB, KEY))
    with pytest.raises(NotReferenced):
        references.release(Blob(JOB, KEY))
