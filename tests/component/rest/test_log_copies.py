"""TaskManagers' logs as blobs, from real files, over a real BlobServer and the real endpoint (B3, B18)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minflinkd.blob.keys import BlobKey
from minflinkd.rest.log_copies import LOOK, UNREAD, LogCopies
from minflinkd.rpc.messages import LogMark, LogRange, ReadLog
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.logs import MARKED
from tests.component.rest.log_world import LARGE, MINSIZE, SEGMENT, World, running, text
from tests.unit.rest.parties import TM
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async for world in running(tmp_path):
        yield world


# --- what is sent, and what is kept ------------------------------------------------------------------------------


async def test_a_large_log_travels_once_however_often_it_is_read(world: World) -> None:
    """Only the bytes of its blobs are sent (B3)."""
    data = text(LARGE)
    world.write(data)
    assert await world.read() == data
    assert world.uploaded == world.kept() == LARGE
    assert await world.read() == data
    assert await world.read(query=f"?offset={LARGE // 2}&length=10") == data[LARGE // 2 : LARGE // 2 + 10]
    assert world.uploaded == LARGE
    assert sum(question.length for question in world.asked) == LARGE


async def test_a_small_part_comes_by_message(world: World) -> None:
    """A tail is too small for a blob (B3)."""
    data = text(LARGE)
    world.write(data)
    assert await world.read(query=f"?offset=-{MINSIZE}") == data[-MINSIZE:]
    assert (world.uploaded, world.kept()) == (0, 0)


@pytest.mark.parametrize(("more", "blobs"), [(MINSIZE, 0), (MINSIZE + 1, MINSIZE + 1), (SEGMENT + 5, SEGMENT)])
async def test_of_a_log_that_has_grown_only_the_new_part_is_sent(world: World, more: int, blobs: int) -> None:
    """The new part is sent by message, as a blob, or as both (B3)."""
    data = text(LARGE + more)
    path = world.write(data[:LARGE])
    await world.read()
    del world.asked[:]
    with path.open("ab") as log:
        log.write(data[LARGE:])
    assert await world.read() == data
    assert world.kept() == LARGE + blobs
    assert sum(question.length for question in world.asked) == more
    assert min(question.offset for question in world.asked if question.length) == LARGE


async def test_another_log_takes_the_place_of_the_one_before(world: World) -> None:
    """The blobs of the earlier log are deleted at once (B18)."""
    world.write(text(LARGE))
    world.write(text(200_000, b"gc1"), "session.log")
    await world.read()
    await world.read("session.log", "?offset=-50")
    assert world.kept() == LARGE, "a look at the end of another log takes nothing away"
    await world.read("session.log")
    await world.until_kept(200_000)


async def test_equal_logs_share_their_blobs(world: World) -> None:
    """Equal bytes in two logs are one blob. It is deleted with the last of the two."""
    data = text(300_000)
    world.write(data)
    world.write(data, "session.log")
    await world.read()
    await world.read("session.log")
    assert await world.read("session.log") == data
    assert world.kept() == 300_000


async def test_a_copy_that_nobody_reads_goes_after_a_while(world: World) -> None:
    """An unread copy is deleted even if its TaskManager is gone, so that nobody asks for another log of it (B18)."""
    world.write(text(LARGE))
    await world.read()
    world.network.detach(world.mailbox)
    world.clock.advance(UNREAD / 2)
    await asyncio.sleep(0)
    assert world.kept() == LARGE
    world.clock.advance(UNREAD / 2 + LOOK)
    await world.until_kept(0)


# --- logs that change --------------------------------------------------------------------------------------------


async def test_a_rotated_log_is_another_one(world: World) -> None:
    path = world.write(text(LARGE))
    await world.read()
    path.rename(path.with_suffix(".log.1"))
    after = text(LARGE + 70, b"new")
    world.write(after)
    assert await world.read() == after
    await world.until_kept(LARGE + 70)
    assert await world.read("taskmanager.log.1") == text(LARGE)


@pytest.mark.parametrize("size", [0, LARGE - 1, LARGE + 100_000])
async def test_a_truncated_log_is_another_one_however_far_it_has_grown_again(world: World, size: int) -> None:
    path = world.write(text(LARGE))
    await world.read()
    inode = path.stat().st_ino
    after = text(size, b"new")
    world.write(after)
    assert path.stat().st_ino == inode
    assert await world.read() == after


async def test_a_log_that_is_truncated_while_it_is_read_breaks_off(world: World) -> None:
    """An answer never mixes both contents."""
    path = world.write(text(LARGE))
    uploads = 0
    upload = world.upload

    async def truncating(data: bytes) -> BlobKey:
        nonlocal uploads
        uploads += 1
        if uploads == 1:
            path.write_bytes(text(LARGE, b"new"))
        return await upload(data)

    world.upload = truncating
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.read()
    assert await world.read() == text(LARGE, b"new")
    await world.until_kept(LARGE)


# --- several readers, and readers that go away -------------------------------------------------------------------


async def test_readers_at_the_same_time_share_one_copy(world: World) -> None:
    data = text(LARGE)
    world.write(data)
    assert await asyncio.gather(*(world.read() for _ in range(5))) == [data] * 5
    assert world.uploaded == world.kept() == LARGE
    assert sum(question.length for question in world.asked) == LARGE, "each part is asked for once"


async def test_a_reader_ends_though_another_log_has_taken_its_place(world: World) -> None:
    """The blobs are deleted with their last reader (B18)."""
    data, other = text(20 * SEGMENT), text(LARGE, b"gc1")
    world.write(data)
    world.write(other, "session.log")
    async with world.http.get(world.path()) as response:
        begin = await response.content.readexactly(10)
        assert await world.read("session.log") == other
        assert begin + await response.read() == data
    assert sum(question.length for question in world.asked) == len(data) + len(other), "nothing was asked for again"
    await world.until_kept(LARGE)


async def test_a_reader_that_goes_away_leaves_nothing_of_a_log_that_was_replaced(world: World) -> None:
    """The blobs that the reader had are deleted, and so is the blob that was on its way (B18)."""
    world.write(text(LARGE))
    world.write(text(200_000, b"gc1"), "session.log")
    begun, go_on, upload = asyncio.Event(), asyncio.Event(), world.upload

    async def slow(data: bytes) -> BlobKey:
        begun.set()
        await go_on.wait()
        return await upload(data)

    world.upload = slow
    async with world.http.get(world.path()):
        await begun.wait()
    world.upload = upload
    await world.read("session.log")
    assert world.kept() == 200_000
    go_on.set()
    await until(lambda: world.uploaded >= SEGMENT + 200_000)
    await world.until_kept(200_000)


async def test_a_taskmanager_that_dies_while_its_log_is_read_breaks_the_answer_off(world: World) -> None:
    world.write(text(LARGE))
    upload = world.upload

    async def dying(data: bytes) -> BlobKey:
        key = await upload(data)
        world.network.detach(world.mailbox)
        return key

    world.upload = dying
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.read()
    assert world.kept() == SEGMENT, "what has arrived is there for the next one, until nobody asks any more"
    world.clock.advance(UNREAD + LOOK)
    await world.until_kept(0)


@pytest.fixture
async def copies(world: World) -> AsyncIterator[LogCopies]:
    """Log copies without the endpoint, so that the test controls where readers are."""

    async def ask(_: ResourceId, question: ReadLog) -> LogRange:
        return await _ask(world, question)

    async with LogCopies(ask, world.blobs, minsize=MINSIZE, clock=world.clock) as copies:
        yield copies


async def test_readers_that_opened_a_log_together_share_one_copy(world: World, copies: LogCopies) -> None:
    data = text(LARGE)
    world.write(data)
    both = [await copies.open(TM, "taskmanager.log") for _ in range(2)]
    for reading in both:
        assert b"".join([piece async for piece in reading.pieces(0, LARGE)]) == data
        reading.close()
    assert sum(question.length for question in world.asked) == LARGE


async def test_blobs_of_a_copy_that_was_replaced_go_with_its_last_reader(world: World, copies: LogCopies) -> None:
    """A reader that continues causes nothing to be sent again (B18)."""
    data, other = text(LARGE), text(200_000, b"gc1")
    world.write(data)
    world.write(other, "session.log")
    reading, second = [await copies.open(TM, "taskmanager.log") for _ in range(2)]
    pieces = reading.pieces(0, LARGE)
    got = [await anext(pieces), await anext(pieces)]
    second.close()
    another = await copies.open(TM, "session.log")
    assert b"".join([piece async for piece in another.pieces(0, len(other))]) == other
    another.close()
    assert world.kept() == 2 * SEGMENT + len(other)
    got += [piece async for piece in pieces]
    assert b"".join(got) == data
    assert sum(question.length for question in world.asked) == LARGE + len(other)
    reading.close()
    await world.until_kept(len(other))


async def test_readers_of_parts_that_overlap_ask_for_no_byte_twice(world: World, copies: LogCopies) -> None:
    """In any order of readers, each byte is requested once. Every gap between two parts is large enough for a blob."""
    data = text(LARGE)
    world.write(data)

    async def read(first: int, end: int) -> bytes:
        reading = await copies.open(TM, "taskmanager.log")
        try:
            return b"".join([piece async for piece in reading.pieces(first, end)])
        finally:
            reading.close()

    first = MINSIZE * 2
    parts = [(first, LARGE), (0, LARGE), (2 * first, 2 * SEGMENT), (first, SEGMENT)]
    assert await asyncio.gather(*(read(*part) for part in parts)) == [data[slice(*part)] for part in parts]
    assert sum(question.length for question in world.asked) == LARGE


# --- when blobs are of no avail ----------------------------------------------------------------------------------


async def test_without_a_blobserver_to_upload_to_a_log_comes_by_message(world: World) -> None:
    """A log is needed most when something is broken."""
    data = text(LARGE)
    world.write(data)
    await world.client.aclose()
    world.client.url = "http://127.0.0.1:9"
    assert await world.read() == data
    assert sum(question.upload for question in world.asked) == 1, "not every piece waits for it"


async def test_a_blob_that_has_gone_from_the_store_is_asked_for_again(world: World) -> None:
    data = text(LARGE)
    world.write(data)
    await world.read()
    for entry in os.scandir(world.store / "none"):
        os.unlink(entry.path)
    assert await world.read() == data
    assert await world.read() == data
    assert world.kept() == LARGE


async def test_blobs_that_are_too_large_for_the_server_come_by_message(tmp_path: Path) -> None:
    """The limit is `blob.max-size`."""
    async for world in running(tmp_path, max_size=MINSIZE):
        data = text(LARGE)
        world.write(data)
        assert await world.read() == data
        assert world.kept() == 0


async def test_a_link_is_no_log(world: World, tmp_path: Path) -> None:
    """Nothing outside the directory is read (E40)."""
    (tmp_path / "secret").write_text("hunter2")
    (world.directory / "link.log").symlink_to(tmp_path / "secret")
    async with world.http.get(world.path("link.log")) as response:
        assert response.status == 404


# --- any part ----------------------------------------------------------------------------------------------------

SIZE = 3 * MINSIZE
PLACES = st.one_of(st.integers(0, SIZE + 10), st.sampled_from([0, 1, MINSIZE, MINSIZE + 1, 2 * MINSIZE, SIZE - 1]))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("read"), PLACES, PLACES),
            st.tuples(st.just("tail"), PLACES, PLACES),
            st.tuples(st.just("grow"), st.integers(1, 2 * MINSIZE), st.just(0)),
            st.tuples(st.just("rotate"), st.integers(0, SIZE), st.just(0)),
            st.tuples(st.just("other"), st.just(0), st.just(0)),
        ),
        max_size=8,
    )
)
def test_any_part_at_any_time_is_what_the_file_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Earlier reads and changes of the log do not matter (B3)."""

    async def run() -> None:
        async for world in running(tmp_path_factory.mktemp("world")):
            path, data, generation = world.write(text(SIZE)), text(SIZE), 0
            world.write(text(SIZE, b"gc1"), "session.log")
            for step, a, b in steps:
                match step:
                    case "read":
                        assert await world.read(query=f"?offset={a}&length={b}") == data[a : a + b]
                    case "tail":
                        header = {"Range": f"bytes=-{a + 1}"}
                        async with world.http.get(world.path(), headers=header) as response:
                            if data:
                                assert await response.read() == data[-(a + 1) :]
                            else:
                                assert response.status == 416
                    case "grow":
                        data += text(a, b"mor")
                        with path.open("ab") as log:
                            log.write(data[-a:])
                    case "rotate":
                        generation += 1
                        path.unlink()
                        data = text(a, b"n%02d" % generation)
                        world.write(data)
                    case "other":
                        assert await world.read("session.log") == text(SIZE, b"gc1")
            assert await world.read() == data

    asyncio.run(run())


async def test_a_mark_knows_the_log_by_its_last_bytes(world: World) -> None:
    """A log whose last bytes before the mark have changed is not a continuation."""
    path = world.write(text(5000))
    known = (await _ask(world, ReadLog(name=path.name, length=0))).mark
    with path.open("ab") as log:
        log.write(b"more")
    assert (await _ask(world, ReadLog(name=path.name, offset=5000, known=known))).data == b"more"
    with path.open("r+b") as log:
        log.seek(5000 - MARKED)
        log.write(b"\0")
    answer = await _ask(world, ReadLog(name=path.name, offset=5000, known=known))
    assert (answer.continues, answer.data) == (False, b"")


async def test_a_mark_knows_the_log_by_its_file(world: World) -> None:
    """Another file may end with the same bytes."""
    path = world.write(b"old" + text(5000))
    known = (await _ask(world, ReadLog(name=path.name, length=0))).mark
    path.rename(path.with_suffix(".1"))
    world.write(b"new" + text(5000))
    assert not (await _ask(world, ReadLog(name=path.name, known=known))).continues


async def _ask(world: World, question: ReadLog) -> LogRange:
    answer: LogRange = await world.mailbox.deliver(question, None)
    assert isinstance(answer.mark, LogMark)
    return answer
