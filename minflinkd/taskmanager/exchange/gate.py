"""The gate of a task with inputs: when barriers have aligned, and what may pass. Pure.

Asynchronous barrier snapshotting (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015), with micro-batches as the units. The reading side stops at every barrier on its own, and passes it when it is
released. So nothing here has to happen in time: a lost or late message can at worst hold an input until a checkpoint is
aborted. Checkpoints are cut in the order of their numbers. One that is triggered after a later one was cut has ended.

- Exactly-once: a checkpoint is cut when the task stands exactly at its barrier in all inputs (C2).
- At-least-once: it is cut when the task has read everything up to the barriers, and perhaps more (C3).
- Unaligned: it is cut once all barriers are written and a timeout has passed, wherever the task stands. What the task
  has not read becomes part of the snapshot (C5).
- Without inputs: it is cut at once (C1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.machine import InvariantViolated


@dataclass(frozen=True)
class Channel:
    """One input. Positions are sequence numbers. `position` is the first entry that the task has not read."""

    position: int
    written: int  # the first entry that is not written yet
    barriers: Mapping[int, int] = field(default_factory=dict)  # checkpoint -> sequence number
    unread: tuple[tuple[int, int], ...] = ()  # (sequence number, bytes) from `position` on, except barriers

    def stands_at(self, sequence: int) -> bool:
        """Whether only barriers lie between `position` and `sequence`."""
        return not any(at < sequence for at, _ in self.unread)

    def bytes_beyond(self, sequence: int) -> int:
        return sum(size for at, size in self.unread if at >= sequence)

    def bytes_before(self, sequence: int) -> int:
        return sum(size for at, size in self.unread if at < sequence)


@dataclass(frozen=True)
class Gate:
    """Times are seconds of one clock. If `aligned_timeout` is None, alignment never times out."""

    channels: Mapping[VertexId, Channel]
    hold: bool = True  # exactly-once
    aligned_timeout: float | None = None
    # Triggered checkpoints that are not cut yet, and since when.
    waiting: Mapping[int, float] = field(default_factory=dict)
    arrived: Mapping[int, float] = field(default_factory=dict)  # checkpoint -> when its first barrier was seen
    void: frozenset[int] = frozenset()  # aborted checkpoints; their barriers may still come
    floor: int = 0  # older checkpoints than this are no longer wanted


@dataclass(frozen=True)
class Triggered:
    """`oldest` is the oldest checkpoint pending at the coordinator. All older ones have ended."""

    checkpoint_id: int
    oldest: int = 0


@dataclass(frozen=True)
class Aborted:
    checkpoint_id: int


@dataclass(frozen=True)
class Arrived:
    """An entry was written. `barrier`: its checkpoint, if it is a barrier. `void`: nobody waits for that barrier."""

    channel: VertexId
    sequence: int
    size: int = 0
    barrier: int | None = None
    void: bool = False


@dataclass(frozen=True)
class Advanced:
    """The task has processed a micro-batch. `positions` are where it now stands in the channels."""

    positions: Mapping[VertexId, int]


@dataclass(frozen=True)
class Tick:
    pass


Event = Triggered | Aborted | Arrived | Advanced | Tick


@dataclass(frozen=True)
class Cut:
    """Take the snapshot now, and put the barrier into all outputs before anything else happens.

    `barriers` holds the sequence number of the barrier in each channel. `unread` holds the first entry that the task
    has not read, for each channel with such entries before its barrier.
    """

    checkpoint_id: int
    barriers: Mapping[VertexId, int]
    unread: Mapping[VertexId, int]
    alignment: float  # seconds since the first barrier arrived
    held: int  # bytes after barriers, which waited during the alignment
    overtaken: int  # bytes before barriers that become part of the snapshot


@dataclass(frozen=True)
class Release:
    """Let readers pass the barriers of this checkpoint, even barriers that are yet to come."""

    checkpoint_id: int


Command = Cut | Release


def step(gate: Gate, event: Event, now: float) -> tuple[Gate, tuple[Command, ...]]:
    """Apply one event, then do what it and the time allow. Raises InvariantViolated if an entry is out of order."""
    commands: list[Command] = []
    match event:
        case Triggered(number, oldest):
            gate, released = _raise_floor(gate, oldest)
            commands += released
            if number >= gate.floor and number not in gate.void and number not in gate.waiting:
                gate = replace(gate, waiting={**gate.waiting, number: now})
        case Aborted(number):
            gate = _forget(gate, number)
            commands.append(Release(number))
        case Arrived(barrier=barrier):
            gate = _arrived(gate, event, now)
            if barrier is not None and barrier < gate.floor:
                commands.append(Release(barrier))
        case Advanced(positions):
            gate = replace(
                gate, channels={name: _advance(c, positions.get(name, c.position)) for name, c in gate.channels.items()}
            )
        case Tick():
            pass
    while gate.waiting:
        number = min(gate.waiting)
        cut = _cut(gate, number, now)
        if cut is None:
            break
        # Nothing up to this checkpoint may be cut again: an older barrier would come out after this one. Release all
        # their barriers, including those of inputs that did not align.
        gate, released = _raise_floor(gate, number + 1)
        commands += [cut, *released]
    return gate, tuple(commands)


def has_ended(gate: Gate, number: int) -> bool:
    """Whether a triggered checkpoint will not be cut, or not again."""
    return number not in gate.waiting


def next_wakeup(gate: Gate) -> float | None:
    """Return when the passing of time alone may cut the oldest checkpoint."""
    if gate.aligned_timeout is None or not gate.waiting:
        return None
    number = min(gate.waiting)
    return gate.arrived[number] + gate.aligned_timeout if number in gate.arrived else None


def _cut(gate: Gate, number: int, now: float) -> Cut | None:
    barriers = {name: channel.barriers.get(number) for name, channel in gate.channels.items()}
    if any(sequence is None for sequence in barriers.values()):
        return None
    at = {name: sequence for name, sequence in barriers.items() if sequence is not None}
    first = gate.arrived.get(number, now)
    behind = {name: c.position for name, c in gate.channels.items() if not c.stands_at(at[name])}
    if behind and (not gate.hold or gate.aligned_timeout is None or now < first + gate.aligned_timeout):
        return None
    return Cut(
        checkpoint_id=number,
        barriers=at,
        unread=behind,
        alignment=now - first,
        held=sum(c.bytes_beyond(at[name]) for name, c in gate.channels.items()) if gate.hold else 0,
        overtaken=sum(gate.channels[name].bytes_before(at[name]) for name in behind),
    )


def _arrived(gate: Gate, entry: Arrived, now: float) -> Gate:
    name, sequence, barrier = entry.channel, entry.sequence, entry.barrier
    channel = gate.channels[name]
    if sequence < channel.written:
        return gate
    if sequence > channel.written:
        raise InvariantViolated(f"channel {name}: entry {sequence} came before entry {channel.written}")
    channel = replace(channel, written=sequence + 1)
    if barrier is None:
        if sequence >= channel.position:
            channel = replace(channel, unread=(*channel.unread, (sequence, entry.size)))
    elif not entry.void and barrier >= gate.floor and barrier not in gate.void:
        channel = replace(channel, barriers={**channel.barriers, barrier: sequence})
        gate = replace(gate, arrived={barrier: now, **gate.arrived})
    return replace(gate, channels={**gate.channels, name: channel})


def _advance(channel: Channel, position: int) -> Channel:
    if position <= channel.position:
        return channel
    return replace(
        channel, position=position, unread=tuple((at, size) for at, size in channel.unread if at >= position)
    )


def _forget(gate: Gate, number: int) -> Gate:
    """Remove a checkpoint that was cut or has ended."""
    return replace(
        gate,
        waiting={n: since for n, since in gate.waiting.items() if n != number},
        arrived={n: at for n, at in gate.arrived.items() if n != number},
        channels={
            name: replace(c, barriers={n: at for n, at in c.barriers.items() if n != number})
            for name, c in gate.channels.items()
        },
        void=frozenset(n for n in gate.void | {number} if n >= gate.floor),
    )


def _raise_floor(gate: Gate, floor: int) -> tuple[Gate, tuple[Release, ...]]:
    """Forget all checkpoints below `floor`, which have ended, and release what they held."""
    floor = max(gate.floor, floor)
    gate = replace(gate, floor=floor, void=frozenset(n for n in gate.void if n >= floor))
    barriers = {number for channel in gate.channels.values() for number in channel.barriers}
    ended = sorted(n for n in {*gate.waiting, *barriers} if n < floor)
    for number in ended:
        gate = _forget(gate, number)
    return gate, tuple(Release(number) for number in ended)
