"""Whether the daemon could run on this machine: what `minflinkd doctor` checks before the first start (E19a).

Each check looks at one thing and leaves nothing behind. None of them needs a daemon.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import shutil
import stat
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec
import psutil

from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.diagnosis.words import share, size, span
from minflinkd.runtime import listening
from minflinkd.runtime.errors import MinflinkError
from minflinkd.storage.location import Location
from minflinkd.storage.probe import probe
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.child.java import check_java
from minflinkd.taskmanager.child.run_as import check_run_as

BESIDE_HEAP = 500 * 2**20  # bytes of a TaskManager beside the heap, docs/benchmarks.md
LITTLE_SPACE = 2 * 2**30  # bytes; a first job with its logs fits
SHARE_OF_DISK = 0.05
FILES = 4096  # descriptors: sockets of TaskManagers and clients, files of checkpoints
SKEW = 2.0  # seconds between this clock and the storage's that harm nothing
SLOW_STORAGE = 0.5  # seconds for a small object to be written and read
STORAGE_TIMEOUT = 60.0
_UNSYNCHRONIZED = 0x0040  # STA_UNSYNC of adjtimex(2)
_STATUS_AT = 40  # bytes: the field `status` of struct timex on 64-bit Linux
_OLDEST = 1_735_689_600  # 2025-01-01: an earlier clock was never set


class Outcome(StrEnum):
    OK = "ok"
    WARNING = "warning"  # the daemon starts, and may get into trouble
    FAILED = "failed"  # the daemon does not start, or no job would run


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    outcome: Outcome
    sentence: str
    do: str = ""


async def checks(config: Config, environ: Mapping[str, str], *, daemon_runs: bool = False) -> AsyncIterator[Check]:
    """Yield what is found. `daemon_runs`: a daemon answers already, so taken ports are its own."""
    state = where.state_directory(config, environ)
    if config.resourcemanager.driver.starts_here:
        yield await asyncio.to_thread(_java, environ)
        yield _memory(config)
    yield await asyncio.to_thread(_directory, state)
    yield await asyncio.to_thread(_disk, state)
    if config.taskmanager.run_as:
        yield await asyncio.to_thread(_run_as, config)
    yield _files()
    if not daemon_runs:
        async for found in _ports(config):
            yield found
    yield await asyncio.to_thread(_clock)
    async for found in _storages(config, state):
        yield found


def _java(environ: Mapping[str, str]) -> Check:
    try:
        java = check_java(environ)
    except MinflinkError as error:
        return _failed("java", error)
    return Check(name="java", outcome=Outcome.OK, sentence=f"{java.program} is Java {java.version}")


def _memory(config: Config) -> Check:
    heap, memory = int(config.taskmanager.session.memory_heap_size), psutil.virtual_memory()
    fewest = max(1, config.resourcemanager.min_taskmanagers + config.resourcemanager.standby_taskmanagers)
    needed = fewest * (heap + BESIDE_HEAP)
    told = (
        f"{size(memory.available)} of {size(memory.total)} are available; {_task_managers(fewest)} a heap "
        f"of {size(heap)} {'needs' if fewest == 1 else 'need'} about {size(needed)}"
    )
    if memory.total < heap + BESIDE_HEAP:
        do = "lower taskmanager.memory.heap.size, or take a larger machine"
        return Check(name="memory", outcome=Outcome.FAILED, sentence=told, do=do)
    if memory.available < needed:
        do = "lower taskmanager.memory.heap.size or resourcemanager.standby-taskmanagers, or end other programs"
        return Check(name="memory", outcome=Outcome.WARNING, sentence=told, do=do)
    return Check(name="memory", outcome=Outcome.OK, sentence=told)


def _directory(state: Path) -> Check:
    """The state directory can be made and written, and only its owner can."""
    existing = _existing(state)
    if not existing.is_dir():
        do = "set process.working-dir to a directory"
        return Check(name="directory", outcome=Outcome.FAILED, sentence=f"{existing} is no directory", do=do)
    if not os.access(existing, os.W_OK | os.X_OK):
        told = f"{existing} cannot be written by {_user()}, so the state directory {state} cannot be used"
        do = "set process.working-dir to another directory, or change the owner of this one"
        return Check(name="directory", outcome=Outcome.FAILED, sentence=told, do=do)
    if existing == state and state.stat().st_mode & stat.S_IWOTH:
        told = f"everybody can write into the state directory {state}, and so run code as {_user()}"
        return Check(name="directory", outcome=Outcome.WARNING, sentence=told, do=f"chmod o-w {state}")
    told = f"{state} can be written by {_user()}" if existing == state else f"{state} can be made by {_user()}"
    return Check(name="directory", outcome=Outcome.OK, sentence=told)


def _disk(state: Path) -> Check:
    try:
        usage = shutil.disk_usage(_existing(state))
    except OSError as error:
        return Check(name="disk", outcome=Outcome.WARNING, sentence=f"the space of {state} is not known: {error}")
    told = f"{size(usage.free)} of {size(usage.total)} ({share(usage.free, usage.total)}) are free at {state}"
    if usage.free < min(LITTLE_SPACE, SHARE_OF_DISK * usage.total) or usage.free < LITTLE_SPACE / 8:
        return Check(name="disk", outcome=Outcome.FAILED, sentence=told, do="free space, or set process.working-dir")
    if usage.free < LITTLE_SPACE or usage.free < SHARE_OF_DISK * usage.total:
        return Check(name="disk", outcome=Outcome.WARNING, sentence=told, do="free space, or set process.working-dir")
    return Check(name="disk", outcome=Outcome.OK, sentence=told)


def _run_as(config: Config) -> Check:
    name = config.taskmanager.run_as
    try:
        check_run_as(name, config.taskmanager.local_state_dir)
    except MinflinkError as error:
        return _failed("permissions", error)
    return Check(name="permissions", outcome=Outcome.OK, sentence=f"sessions can run as the user {name}")


def _files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        told = f"a process may have {hard} files and sockets open at once"
        do = f"raise the limit to {FILES} at least (ulimit -Hn, LimitNOFILE of the unit)"
        return Check(name="files", outcome=Outcome.WARNING, sentence=told, do=do)
    many = "any number of" if hard == resource.RLIM_INFINITY else f"{hard:,}"
    return Check(name="files", outcome=Outcome.OK, sentence=f"a process may have {many} files and sockets open at once")


async def _ports(config: Config) -> AsyncIterator[Check]:
    here = config.jobmanager.bind_host
    for place in (
        listening.Place(config.rest.bind_address, (config.rest.port,), "rest.bind-address", "rest.port"),
        listening.Place(here, tuple(config.jobmanager.rpc_port), "jobmanager.bind-host", "jobmanager.rpc.port"),
        listening.Place(here, tuple(config.blob.server_port), "jobmanager.bind-host", "blob.server.port"),
    ):
        try:
            sockets = await listening.bind(place)
        except MinflinkError as error:
            yield _failed("port", error)
            continue
        port = sockets[0].getsockname()[1]
        listening.close(sockets)
        told = f"{place.port_option}: any free port" if 0 in place.ports else f"{place.port_option}: {port} is free"
        yield Check(name="port", outcome=Outcome.OK, sentence=told)


def _clock() -> Check:
    now = time.time()
    if now < _OLDEST:
        told = f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}"
        do = "set the clock: tokens, certificates and event times depend on it"
        return Check(name="clock", outcome=Outcome.FAILED, sentence=told, do=do)
    if _unsynchronized():
        told = "the kernel says that no time service sets the clock"
        do = "run chrony or systemd-timesyncd if there are several hosts: their clocks must agree"
        return Check(name="clock", outcome=Outcome.WARNING, sentence=told, do=do)
    return Check(name="clock", outcome=Outcome.OK, sentence="the clock is set by a time service")


def _unsynchronized() -> bool:
    """Ask the kernel, which a time service tells. False where that is not possible."""
    timex = ctypes.create_string_buffer(512)  # larger than struct timex; its field `modes` is 0: nothing is changed
    try:
        if ctypes.CDLL(None, use_errno=True).adjtimex(timex) < 0:
            return False
    except (AttributeError, OSError):
        return False
    status = int.from_bytes(timex.raw[_STATUS_AT : _STATUS_AT + 4], "little")
    return bool(status & _UNSYNCHRONIZED)


async def _storages(config: Config, state: Path) -> AsyncIterator[Check]:
    """Write, read, list and delete at each place where the daemon keeps files, by its backend."""
    try:
        storages = Storages(config.storage.options)
    except MinflinkError as error:
        yield _failed("storage", error)
        return
    places = {where.checkpoint_uri(config, state), where.savepoint_uri(config, state)}
    places.add(where.ha_storage_uri(config, state))
    remote = sorted(place for place in places if not _within(place, state))
    remote = [each for each in remote if not any(each.startswith(f"{other.rstrip('/')}/") for other in remote)]
    try:
        for uri in remote:
            yield await _storage(storages, uri)
        if len(remote) < len(places) and os.access(_existing(state), os.W_OK | os.X_OK):
            yield await _storage(storages, f"file://{_existing(state)}")
    finally:
        await storages.aclose()


def _within(uri: str, state: Path) -> bool:
    return uri.startswith(f"file://{state}/")


async def _storage(storages: Storages, uri: str) -> Check:
    try:
        place = storages.at(uri)
        began = time.monotonic()
        async with asyncio.timeout(STORAGE_TIMEOUT):
            skew = await _skew(place)
            took = time.monotonic() - began
            problems = [found.problem async for found in probe(place) if found.declared and not found.holds]
    except TimeoutError:
        do = "see whether the storage answers at all"
        told = f"{uri} has not answered for {STORAGE_TIMEOUT:.0f} s"
        return Check(name="storage", outcome=Outcome.FAILED, sentence=told, do=do)
    except MinflinkError as error:
        return _failed("storage", error, uri)
    if problems:
        do = f"minflinkd plugins --check {uri} shows each of them; look at permissions and at storage.* options"
        return Check(name="storage", outcome=Outcome.FAILED, sentence=f"{uri}: {problems[0]}", do=do)
    told = f"{uri}: written, read, listed and deleted; a small object takes {span(took * 1000)}"
    if abs(skew) > SKEW:
        told += f", and its clock differs from this one by {abs(skew):.0f} s"
        return Check(name="storage", outcome=Outcome.WARNING, sentence=told, do="set the clocks by a time service")
    if took > SLOW_STORAGE:
        do = "checkpoints will be slow: take a storage that is nearer, or a longer interval"
        return Check(name="storage", outcome=Outcome.WARNING, sentence=told, do=do)
    return Check(name="storage", outcome=Outcome.OK, sentence=told)


async def _skew(place: Location) -> float:
    """Write, read and delete an object. Return by how many seconds the storage's clock is ahead."""
    probe_object = place.child(f"_minflinkd-doctor-{os.getpid()}-{time.time_ns():x}")
    data = b"minflinkd doctor"
    before = time.time()
    entry = await probe_object.write_bytes(data)
    after = time.time()
    try:
        if await probe_object.read_bytes() != data:
            raise MinflinkError("what was written is not what is read", hint="do not use this storage")
    finally:
        await probe_object.delete()
    written = entry.modified_ms / 1000 if entry.modified_ms else before
    return written - before if written < before else max(0.0, written - after)


def _task_managers(count: int) -> str:
    return "a TaskManager with" if count == 1 else f"{count} TaskManagers with"


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())


def _user() -> str:
    return f"uid {os.geteuid()}"


def _failed(name: str, error: MinflinkError, what: str = "") -> Check:
    info = error.info()
    told = f"{what}: {info.message}" if what else info.message
    return Check(name=name, outcome=Outcome.FAILED, sentence=told, do=info.hint)
