"""Two versions of minflinkd next to each other understand each other's messages.

`tests/golden` keeps what every message looked like in each version. To repair a test here: keep the form of the
message. Only while a version is unreleased may its golden files be written again: `python -m tests.golden`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import pytest

from minflinkd import __version__
from minflinkd.checkpoint import messages as of_checkpoints
from minflinkd.rpc import job_state, jobs
from minflinkd.rpc.codec import Codec
from minflinkd.rpc.messages import Notice, Request, registry
from minflinkd.runtime.units import decode_unit
from tests.golden.differences import differences
from tests.golden.files import read_messages, read_shapes, versions
from tests.golden.messages import encoded_samples, message_types, wire_types
from tests.golden.shapes import TO_DO, incompatible, shapes_of

INSIDE = {
    jobs.__name__,
    job_state.__name__,
    of_checkpoints.__name__,
}  # the messages of these modules do not leave the daemon
CODEC = Codec()
GOLDEN = [(version, name) for version in versions() for name in read_messages(version)]


def test_there_are_golden_files_of_this_version() -> None:
    """Otherwise the next version is compared with nothing (A15a). To repair: `python -m tests.golden`."""
    assert __version__ in versions()


def test_every_message_that_crosses_a_wire_has_a_golden_sample() -> None:
    """The registry has the messages of all modules (A15a). To repair: `python -m tests.golden`."""
    ours = {name: kind.__module__ for name, kind in registry().items() if kind.__module__.startswith("minflinkd.")}
    crossing = {name for name, module in ours.items() if module not in INSIDE}
    assert crossing - {Request.__name__, Notice.__name__} == set(message_types())
    assert set(wire_types()) == set(read_messages(__version__))


def test_the_golden_files_of_this_version_are_what_it_sends() -> None:
    """Until its release, they follow each change; after it, none is allowed. To repair: `python -m tests.golden`."""
    to_do = f"if {__version__} is not released, and the change is meant: python -m tests.golden. {TO_DO}"
    assert encoded_samples() == read_messages(__version__), to_do
    assert shapes_of(wire_types()) == read_shapes(__version__), to_do


@pytest.mark.parametrize(("version", "name"), GOLDEN)
def test_what_an_earlier_version_sends_is_read_and_what_is_sent_to_it_has_all_that_it_knows(
    version: str, name: str
) -> None:
    """Its golden message is decoded. Encoded again, it says the same to one who skips unknown fields (A15a)."""
    golden = read_messages(version)[name]
    kinds = wire_types()
    assert name in kinds, f"{name} was removed or renamed. {TO_DO}"
    try:
        read = msgspec.msgpack.decode(golden, type=kinds[name], dec_hook=decode_unit)
    except msgspec.MsgspecError as error:
        pytest.fail(f"{name} of {version} cannot be read: {error}. {TO_DO}")
    sent = msgspec.msgpack.decode(CODEC.encode(read))
    lost = list(differences(msgspec.msgpack.decode(golden), sent, name))
    assert not lost, f"{version} is not understood, or does not understand: {lost}. {TO_DO}"


@pytest.mark.parametrize("version", versions())
def test_messages_change_only_as_an_earlier_version_can_bear_it(version: str) -> None:
    """Also in what no sample shows: defaults, fields without one, values of enumerations (A15a)."""
    found = incompatible(read_shapes(version), shapes_of(wire_types()))
    assert not found, "\n".join([*found, TO_DO])


class Mood(StrEnum):
    CALM = "calm"
    MERRY = "merry"


class Moods(StrEnum):
    CALM = "calm"
    MERRY = "merry"
    GRUMPY = "grumpy"


class Lenient(StrEnum):
    CALM = "calm"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.CALM


def made(*fields: Any, **options: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Sent", fields, kw_only=True, **options)


BEFORE = made(("number", int), ("why", str, ""), ("mood", Mood, Mood.CALM))


@pytest.mark.parametrize(
    "now",
    [
        made(("number", int), ("why", str, ""), ("mood", Mood, Mood.CALM), ("more", int, 0)),
        made(("why", str, ""), ("more", "int | None", None), ("mood", Mood, Mood.CALM), ("number", int)),
        made(("number", int, 5), ("why", str, ""), ("mood", Mood, Mood.CALM)),
    ],
    ids=["a field with a default", "another order", "a default for an old field"],
)
def test_a_field_with_a_default_may_be_added(now: type[msgspec.Struct]) -> None:
    """Both sides read each other: what is unknown is skipped, what is missing has its default (A15a)."""
    assert not incompatible(shapes_of({"Sent": BEFORE}), shapes_of({"Sent": now}))
    old = msgspec.msgpack.encode(BEFORE(number=3, why="x", mood=Mood.MERRY))
    new = msgspec.msgpack.encode(msgspec.msgpack.decode(old, type=now))
    assert msgspec.msgpack.decode(new, type=BEFORE) == msgspec.msgpack.decode(old, type=BEFORE)
    assert not list(differences(msgspec.msgpack.decode(old), msgspec.msgpack.decode(new)))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (made(("number", int), ("mood", Mood, Mood.CALM)), "the field 'why' was removed or renamed"),
        (
            made(("number", int), ("reason", str, ""), ("mood", Mood, Mood.CALM)),
            "the field 'why' was removed or renamed",
        ),
        (
            made(("number", int), ("why", str, ""), ("mood", Mood, Mood.CALM), ("more", int)),
            "the field 'more' was added without a default",
        ),
        (made(("number", str), ("why", str, ""), ("mood", Mood, Mood.CALM)), "the field 'number' was int, and is str"),
        (made(("number", int), ("why", str), ("mood", Mood, Mood.CALM)), "the field 'why' has no default any more"),
        (made(("number", int), ("why", str, ""), ("mood", Moods, Moods.CALM)), "was Mood, and is Moods"),
    ],
    ids=["removed", "renamed", "no default", "type", "default lost", "another enumeration"],
)
def test_every_other_change_of_a_message_is_found(now: type[msgspec.Struct], told: str) -> None:
    """A15a."""
    found = incompatible(shapes_of({"Sent": BEFORE}), shapes_of({"Sent": now}))
    assert [line for line in found if line.startswith("Sent: ") and told in line]


def test_a_message_that_is_removed_is_found() -> None:
    """The version before still sends it (A15a)."""
    assert incompatible(shapes_of({"Sent": BEFORE}), {}) == [
        "Mood: it was removed or renamed",
        "Sent: it was removed or renamed",
    ]


def test_an_enumeration_gains_a_value_only_if_the_version_before_has_a_word_for_it() -> None:
    """Otherwise one word makes a whole message unreadable there (A15a)."""

    def shapes(kind: type[StrEnum], name: str) -> Any:
        return {name: shapes_of({"Sent": made(("mood", kind))})[kind.__name__]}

    added = incompatible(shapes(Mood, "Mood"), shapes(Moods, "Mood"))
    assert added == ["Mood: the value 'grumpy' was added, which the version before cannot read"]
    assert incompatible(shapes(Moods, "Mood"), shapes(Mood, "Mood")) == ["Mood: the value 'grumpy' was removed"]
    assert not incompatible(shapes(Lenient, "Mood"), shapes(Moods, "Mood"))


def test_a_default_that_is_not_sent_stays_as_it_is() -> None:
    """The version before fills in its own (A15a)."""
    two, five = (made(("slots", int, number), omit_defaults=True) for number in (2, 5))
    assert incompatible(shapes_of({"Sent": two}), shapes_of({"Sent": five})) == [
        "Sent: the default of the field 'slots' was 2, and is 5"
    ]


Plant = Callable[[dict[str, Any]], None]


def rename(golden: dict[str, Any]) -> None:
    golden["pid_of_before"] = golden.pop("pid")


def rename_with_default(golden: dict[str, Any]) -> None:
    golden["data_link"] = golden.pop("data_url")


def deep(golden: dict[str, Any]) -> None:
    golden["report"]["slots"][0]["place"] = golden["report"]["slots"][0].pop("job_id")


@pytest.mark.parametrize("plant", [rename, rename_with_default, deep])
def test_the_replay_finds_a_field_that_had_another_name_before(plant: Plant) -> None:
    """As if this version had renamed it (A15a)."""
    golden = msgspec.msgpack.decode(read_messages(__version__)["RegisterTaskManager"])
    plant(golden)
    kind = wire_types()["RegisterTaskManager"]
    try:
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(golden), type=kind, dec_hook=decode_unit)
    except msgspec.MsgspecError:
        return
    assert list(differences(golden, msgspec.msgpack.decode(CODEC.encode(read))))
