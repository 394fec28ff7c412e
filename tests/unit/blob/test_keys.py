import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minflinkd.blob.keys import Blob, BlobKey, BlobKind, owner_name, parse_kind, parse_owner, parse_sha256
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId

SHA256 = hashlib.sha256(b"content").hexdigest()


@pytest.mark.parametrize("kind", BlobKind)
def test_a_key_survives_its_text(kind: BlobKind) -> None:
    """A key consists of the kind, the SHA-256 and 16 random bytes (B1)."""
    key = BlobKey.new(kind, SHA256)
    assert BlobKey.parse(str(key)) == key
    assert len(bytes.fromhex(key.unique)) == 16
    assert str(key).startswith(f"{kind.value}-{SHA256}-")
    assert BlobKey.new(kind, SHA256) != key


@pytest.mark.parametrize(("job_id", "owner"), [(JobId("a" * 32), "a" * 32), (None, "none")])
def test_a_blob_is_named_by_its_key_and_its_job(job_id: JobId | None, owner: str) -> None:
    """Messages name both, because the same content may be stored for two jobs (B1, B2)."""
    blob = Blob(job_id, BlobKey.new(BlobKind.TRANSIENT, SHA256))
    assert str(blob) == f"{blob.key} of job {owner}"
    assert not blob.is_permanent
    assert Blob(job_id, BlobKey.new(BlobKind.PERMANENT, SHA256)).is_permanent


@given(st.text(max_size=160))
@example(f"p-{SHA256}-{'0' * 31}")
@example(f"p-{SHA256}-{'0' * 32}\n")
@example(f"p-{SHA256.upper()}-{'0' * 32}")
@example(f"x-{SHA256}-{'0' * 32}")
@example(f"p-{SHA256}-{'0' * 30}/..")
@example("../../etc/passwd")
@example("p-" + "a" * 5000)
def test_what_is_no_key_is_refused(text: str) -> None:
    """B41"""
    for parse in (BlobKey.parse, parse_sha256, parse_kind if text not in ("p", "t") else parse_sha256):
        with pytest.raises(InvalidId):
            parse(text)


@pytest.mark.parametrize("text", ["", "..", "../x", "/", "a" * 31, "A" * 32, "a" * 32 + "\0", "None"])
def test_what_is_no_job_is_refused(text: str) -> None:
    """B41"""
    with pytest.raises(InvalidId):
        parse_owner(text)
    with pytest.raises(InvalidId):
        owner_name(JobId(text))


def test_a_transient_blob_may_belong_to_no_job() -> None:
    """B2"""
    assert parse_owner("none") is None
    assert owner_name(None) == "none"
