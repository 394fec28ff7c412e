"""Whose uploads are, and how long they count for them (E46)."""

from __future__ import annotations

import pytest

from minflinkd.blob.access import access_token, user_of, user_token
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.uploads import Upload, Uploads
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import JobId

JOB = JobId("a" * 32)
TOKEN = access_token(b"s" * 32)


def blob(digit: str, job_id: JobId | None = JOB) -> Blob:
    return Blob(job_id, BlobKey.new(BlobKind.PERMANENT, digit * 64))


class Room:
    """Admits so many bytes in all."""

    def __init__(self, left: int) -> None:
        self.left = left

    def admit(self, user: str, size: int) -> None:
        if size > self.left:
            raise Conflict(f"{user} has no room")
        self.left -= size


def test_an_announced_size_counts_from_the_first_byte() -> None:
    """So two uploads at once cannot both have the last bytes."""
    uploads, one, two = Uploads(Room(100).admit), blob("1"), blob("2")
    with uploads.receiving(one, "alice", 60):
        assert uploads.all() == (Upload(one, "alice", 60),)
        with pytest.raises(Conflict), uploads.receiving(two, "alice", 60):
            raise AssertionError("unreachable")
    assert uploads.all() == ()


def test_what_was_not_announced_counts_as_it_arrives() -> None:
    """A body in chunks has no length. It is refused at the byte that is too much."""
    room, one = Room(100), blob("1")
    uploads = Uploads(room.admit)
    with uploads.receiving(one, "alice", None) as arrived:
        arrived(40)
        arrived(100)
        assert uploads.all() == (Upload(one, "alice", 100),)
        with pytest.raises(Conflict):
            arrived(101)
    assert uploads.all() == ()


def test_what_is_stored_counts_until_a_job_takes_it_over_or_it_is_gone() -> None:
    uploads = Uploads(Room(1000).admit)
    taken, deleted, with_job, other = blob("1"), blob("2"), blob("3"), blob("4", None)
    for each in (taken, deleted, with_job, other):
        with uploads.receiving(each, "alice", 10):
            uploads.stored(each)
    uploads.taken_over(JOB, [taken.key, BlobKey.new(BlobKind.PERMANENT, "9" * 64)])
    uploads.gone([deleted])
    assert [upload.blob for upload in uploads.all()] == [with_job, other]
    uploads.gone_with(JOB)
    assert uploads.all() == (Upload(other, "alice", 10),)


def test_what_the_cluster_itself_uploads_counts_for_nobody() -> None:
    uploads, one = Uploads(Room(0).admit), blob("1")
    with uploads.receiving(one, "", 1000) as arrived:
        arrived(2000)
        uploads.stored(one)
    assert uploads.all() == ()


@pytest.mark.parametrize("user", ["alice", "uid 0", "jwt ann.b@example", "Jürgen", "a.b.c"])
def test_a_users_token_says_who_it_is(user: str) -> None:
    token = user_token(TOKEN, user)
    assert token.isascii()
    assert not any(character.isspace() for character in token)
    assert user_of(token, TOKEN) == user
    assert user_of(TOKEN, TOKEN) == ""


@pytest.mark.parametrize(
    "given",
    [
        "",
        ".",
        "x",
        TOKEN[:-1],
        user_token(TOKEN, "alice")[:-1],
        user_token(TOKEN, "alice").replace(".", ".x", 1),
        user_token("another", "alice"),
        user_token(TOKEN, "alice").partition(".")[0] + "." + user_token(TOKEN, "bob").partition(".")[2],
        f".{TOKEN}",
        "\udcff.\udcff",
    ],
)
def test_a_token_that_somebody_has_made_up_is_none(given: str) -> None:
    """Who has the token of one user cannot make that of another one, or the cluster's."""
    assert user_of(given, TOKEN) is None
