"""The gate of a task with inputs: when barriers have aligned, and what is let through. Pure.

Asynchronous barrier snapshotting (Carbone et al., "Lightweight Asynchronous Snapshots for Distributed Dataflows",
2015), with micro-batches as the units. The reading side holds at every barrier by itself, and passes it when it is
released; so nothing here has to be in time, and whatever is lost or late can at worst hold an input until a checkpoint
is aborted. Checkpoints are cut in the order of their numbers: one that is triggered behind a later cut has ended.

Exactly-once: a checkpoint is cut when the task stands exactly at its barrier in all inputs (C2). At-least-once: when it
has everything up to the barriers, and perhaps more (C3). Unaligned: once all barriers are written and a time is over,
wherever the task stands; what it has not read becomes part of the snapshot (C5). Without inputs: at once (C1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.machine import InvariantViolated


@dataclass(frozen=True)
class Channel:
    """One input. Positions are sequence numbers: `position` is the first entry that the task has not taken in."""

    position: int
    written: int  # the first entry that is not there yet
    barriers: Mapping[int, int] = field(default_factory=dict)  # checkpoint -> sequence number
    unread: tuple[tuple[int, int], ...] = ()  # (sequence number, bytes) from `position`, of what is no barrier

    def stands_at(self, sequence: int) -> bool:
        """Nothing but barriers lies between."""
        return not any(at < sequence for at, _ in self.unread)

    def bytes_beyond(self, sequence: int) -> int:
        return sum(size for at, size in self.unread if at >= sequence)

    def bytes_before(self, sequence: int) -> int:
        return sum(size for at, size in self.unread if at < sequence)


@dataclass(frozen=True)
class Gate:
    """Times in seconds of one clock. `aligned_timeout`: None never gives up aligning."""

    channels: Mapping[VertexId, Channel]
    hold: bool = True  # exactly-once
    aligned_timeout: float | None = None
    waiting: Mapping[int, float] = field(default_factory=dict)  # triggered checkpoints, not cut yet: since when
    arrived: Mapping[int, float] = field(default_factory=dict)  # checkpoint -> when its first barrier was seen
    void: frozenset[int] = frozenset()  # aborted; their barriers may still come
    floor: int = 0  # nothing below this checkpoint is wanted any more


@dataclass(frozen=True)
class Triggered:
    """`oldest`: of the checkpoints that are pending at the coordinator; whatever is older has ended."""

    checkpoint_id: int
    oldest: int = 0


@dataclass(frozen=True)
class Aborted:
    checkpoint_id: int


@dataclass(frozen=True)
class Arrived:
    """An entry was written. `barrier`: the checkpoint of a barrier; `void`: nobody waits there any more."""

    channel: VertexId
    sequence: int
    size: int = 0
    barrier: int | None = None
    void: bool = False


@dataclass(frozen=True)
class Advanced:
    """The task has taken in a micro-batch: where it stands in each of the channels."""

    positions: Mapping[VertexId, int]


@dataclass(frozen=True)
class Tick:
    pass


Event = Triggered | Aborted | Arrived | Advanced | Tick


@dataclass(frozen=True)
class Cut:
    """Take the snapshot here and now, and put the barrier into all outputs, before anything else happens.

    `barriers`: the sequence number of the barrier in each channel; `unread`: where channels have entries before it that
    the task has not taken in, their first.
    """

    checkpoint_id: int
    barriers: Mapping[VertexId, int]
    unread: Mapping[VertexId, int]
    alignment: float  # seconds since the first barrier arrived
    held: int  # bytes behind barriers, which waited meanwhile
    overtaken: int  # bytes before barriers that become part of the snapshot


@dataclass(frozen=True)
class Release:
    """Let readers pass the barriers of this checkpoint, those that come yet as well."""

    checkpoint_id: int


Command = Cut | Release


def step(gate: Gate, event: Event, now: float) -> tuple[Gate, tuple[Command, ...]]:
    """One event, then what it and the time make possible. Raises InvariantViolated for an entry out of order."""
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
        # What is cut is not to be cut again, nor anything older: its barrier would come out behind this one. Their
        # barriers are released, those of inputs that did not align as well.
        gate, released = _raise_floor(gate, number + 1)
        commands += [cut, *released]
    return gate, tuple(commands)


def has_ended(gate: Gate, number: int) -> bool:
    """Whether a checkpoint that was triggered is not going to be cut (any more)."""
    return number not in gate.waiting


def next_wakeup(gate: Gate) -> float | None:
    """When time alone may cut the oldest checkpoint."""
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
    """A checkpoint that was cut or has ended."""
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
    """Everything below it has ended; what held because of it goes on."""
    floor = max(gate.floor, floor)
    gate = replace(gate, floor=floor, void=frozenset(n for n in gate.void if n >= floor))
    barriers = {number for channel in gate.channels.values() for number in channel.barriers}
    ended = sorted(n for n in {*gate.waiting, *barriers} if n < floor)
    for number in ended:
        gate = _forget(gate, number)
    return gate, tuple(Release(number) for number in ended)
