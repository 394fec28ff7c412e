"""Decides what to delete of a job's checkpoints, and when. A pure queue that never gets ahead of checkpointing (F5).

A request deletes many objects. At most `in_flight` requests run at a time, and at most `rate` files a second are
deleted. No request for files is made while a checkpoint's metadata is being written. A failed part is retried in its
own request, after a growing pause.

Files are given up in the end, because the sweep of orphans finds them. Metadata is never given up and does not wait for
any of this, because restarts wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from minflinkd.runtime.machine import InvariantViolated


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Times in seconds."""

    batch: int = 500
    """Objects in one request."""
    in_flight: int = 3
    """Requests at a time. Files leave one of them to metadata."""
    rate: float = 500.0
    """Files a second."""
    tries: int = 8
    """Of what may be given up."""
    first_pause: float = 0.1
    """After a failure; doubled with each further one."""
    longest_pause: float = 10.0


@dataclass(frozen=True)
class Piece:
    """The part of one deletion that goes into one request."""

    deletion: int
    names: tuple[str, ...]
    must_succeed: bool
    failures: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Queue:
    limits: Limits = field(default_factory=Limits)
    waiting: tuple[Piece, ...] = ()
    in_flight: Mapping[int, tuple[Piece, ...]] = field(default_factory=dict)  # by request
    incomplete: frozenset[int] = frozenset()  # deletions with a piece that was given up
    writes: int = 0  # metadata writes under way
    next_at: float = 0.0  # no request for files before this time
    last_request: int = 0


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """`deletion`: a number that was not used before."""

    deletion: int
    names: tuple[str, ...]
    must_succeed: bool = False  # metadata, not files


@dataclass(frozen=True)
class Done:
    request: int


@dataclass(frozen=True)
class Failed:
    request: int


@dataclass(frozen=True)
class WriteBegun:
    """A checkpoint's metadata is being written."""


@dataclass(frozen=True)
class WriteEnded:
    pass


@dataclass(frozen=True)
class Tick:
    pass


Event = Wanted | Done | Failed | WriteBegun | WriteEnded | Tick

# --- commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delete:
    """Answered by Done or Failed. A missing object is no failure."""

    request: int
    names: tuple[str, ...]
    must_succeed: bool = False


@dataclass(frozen=True)
class Ended:
    """Nothing more is done for this deletion. `complete`: all its objects are gone."""

    deletion: int
    complete: bool


Command = Delete | Ended


def step(queue: Queue, event: Event, now: float) -> tuple[Queue, tuple[Command, ...]]:
    commands: list[Command] = []
    match event:
        case Wanted(deletion, names, must_succeed):
            pieces = tuple(Piece(deletion, part, must_succeed) for part in _parts(names, queue.limits.batch))
            queue = replace(queue, waiting=queue.waiting + pieces)
        case Done(request):
            queue, pieces = _taken(queue, request)
            queue, ended = _ended(queue, pieces)
            commands += ended
        case Failed(request):
            queue, pieces = _taken(queue, request)
            again, given_up = _after_failure(pieces, queue.limits, now)
            incomplete = queue.incomplete.union(piece.deletion for piece in given_up)
            queue = replace(queue, waiting=queue.waiting + again, incomplete=incomplete)
            queue, ended = _ended(queue, given_up)
            commands += ended
        case WriteBegun():
            queue = replace(queue, writes=queue.writes + 1)
        case WriteEnded():
            queue = replace(queue, writes=queue.writes - 1)
        case Tick():
            pass
    while (pieces := _next(queue, now)) != ():
        number = queue.last_request + 1
        names = tuple(name for piece in pieces for name in piece.names)
        must_succeed = pieces[0].must_succeed
        queue = replace(
            queue,
            waiting=tuple(piece for piece in queue.waiting if piece not in pieces),
            in_flight={**queue.in_flight, number: pieces},
            next_at=queue.next_at if must_succeed else now + len(names) / queue.limits.rate,
            last_request=number,
        )
        commands.append(Delete(number, names, must_succeed))
    return queue, tuple(commands)


def next_wakeup(queue: Queue, now: float) -> float | None:
    """When the next Tick is due; None: not before some other event."""
    times = [
        piece.not_before if piece.must_succeed else max(piece.not_before, queue.next_at)
        for piece in queue.waiting
        if _room(queue, piece)
    ]
    return min((time for time in times if time > now), default=None)


def check_invariants(queue: Queue) -> None:
    """Raises InvariantViolated."""
    requests = queue.in_flight.values()
    files = [pieces for pieces in requests if not pieces[0].must_succeed]
    problems = {
        "more requests in flight than allowed": len(queue.in_flight) > queue.limits.in_flight,
        "no request left to metadata": len(files) >= max(2, queue.limits.in_flight),
        "a request larger than allowed": any(sum(len(p.names) for p in r) > queue.limits.batch for r in requests),
        "writes end that did not begin": queue.writes < 0,
        "files and metadata in one request": any(len({piece.must_succeed for piece in r}) > 1 for r in requests),
    }
    if broken := [name for name, is_broken in problems.items() if is_broken]:
        raise InvariantViolated(f"deletions: {', '.join(broken)}")


def _next(queue: Queue, now: float) -> tuple[Piece, ...]:
    """Return the pieces of the next request. Metadata goes first.

    Fresh pieces share a request; a failed one goes alone.
    """
    for must_succeed in (True, False):
        due = [
            piece
            for piece in queue.waiting
            if piece.must_succeed is must_succeed and piece.not_before <= now and _room(queue, piece)
        ]
        if not due or (not must_succeed and now < queue.next_at):
            continue
        if due[0].failures:
            return (due[0],)
        chosen: list[Piece] = []
        for piece in due:
            if not piece.failures and sum(len(p.names) for p in (*chosen, piece)) <= queue.limits.batch:
                chosen.append(piece)
        return tuple(chosen)
    return ()


def _room(queue: Queue, piece: Piece) -> bool:
    under_way = len(queue.in_flight)
    if piece.must_succeed:
        return under_way < queue.limits.in_flight
    for_files = sum(not pieces[0].must_succeed for pieces in queue.in_flight.values())
    return not queue.writes and for_files < max(1, queue.limits.in_flight - 1) and under_way < queue.limits.in_flight


def _taken(queue: Queue, request: int) -> tuple[Queue, tuple[Piece, ...]]:
    pieces = queue.in_flight[request]
    return replace(queue, in_flight={n: p for n, p in queue.in_flight.items() if n != request}), pieces


def _after_failure(
    pieces: tuple[Piece, ...], limits: Limits, now: float
) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Return the pieces to try again, and the pieces to give up."""
    again, given_up = [], []
    for piece in pieces:
        failures = piece.failures + 1
        if failures >= limits.tries and not piece.must_succeed:
            given_up.append(piece)
            continue
        pause = min(limits.longest_pause, limits.first_pause * 2 ** min(failures - 1, 30))
        again.append(replace(piece, failures=failures, not_before=now + pause))
    return tuple(again), tuple(given_up)


def _ended(queue: Queue, pieces: tuple[Piece, ...]) -> tuple[Queue, list[Command]]:
    """Return an Ended for each deletion of these pieces that has no pieces left."""
    left = {piece.deletion for piece in queue.waiting}
    left |= {piece.deletion for request in queue.in_flight.values() for piece in request}
    over = {piece.deletion: None for piece in pieces if piece.deletion not in left}
    commands: list[Command] = [Ended(deletion, deletion not in queue.incomplete) for deletion in over]
    return replace(queue, incomplete=queue.incomplete - over.keys()), commands


def _parts(names: tuple[str, ...], length: int) -> Iterator[tuple[str, ...]]:
    return (names[start : start + length] for start in range(0, len(names), length))
