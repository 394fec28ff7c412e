"""Messages as bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minflinkd.checkpoint import messages as _checkpoints  # noqa: F401 - its messages are part of the registry
from minflinkd.rpc import job_state as _job_state  # noqa: F401 - as above
from minflinkd.rpc import jobs as _jobs  # noqa: F401 - as above
from minflinkd.rpc.codec import Answer, Ask, Codec, Failure, Frame, ProtocolError, Tell
from minflinkd.rpc.messages import Done, Notice, Request, TaskProgress, answer_type, registry
from minflinkd.runtime.errors import Consequence, ErrorInfo
from tests.unit.rpc.strategies import instances

CODEC = Codec()
KINDS = sorted((kind for kind in registry().values() if kind not in (Request, Notice)), key=lambda kind: kind.__name__)
REQUESTS = [kind for kind in KINDS if issubclass(kind, Request)]
FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(kind: type[Any], data: st.DataObject) -> None:
    """Messages could cross a network (A2)."""
    message = data.draw(instances(kind))
    assert CODEC.decode_message(kind.__name__, CODEC.encode(message)) == message


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@FEW
@given(data=st.data())
def test_every_answer_comes_out_as_it_went_in(kind: type[Any], data: st.DataObject) -> None:
    """A2."""
    answer = data.draw(instances(answer_type(kind)))
    assert CODEC.decode_answer(kind, CODEC.encode(answer)) == answer


@pytest.mark.parametrize("kind", [Ask, Tell, Answer, Failure], ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_frame_comes_out_as_it_went_in(kind: type[Frame], data: st.DataObject) -> None:
    body = CODEC.encode(data.draw(st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2)))
    text = st.text(max_size=5)
    frame: Frame
    if kind is Failure:
        frame = Failure(7, ErrorInfo(code="x", message=data.draw(text), consequence=Consequence.FENCED, hint="y"))
    elif kind is Answer:
        frame = Answer(data.draw(st.integers(0, 2**63)), body)
    elif kind is Ask:
        frame = Ask(1, data.draw(text), "Ping", body, data.draw(st.none() | text))
    else:
        frame = Tell(data.draw(text), "Ping", body, data.draw(st.none() | text))
    data_on_wire = CODEC.encode_frame(frame)
    arrived = CODEC.decode_frame(data_on_wire)
    assert type(arrived) is kind
    assert CODEC.encode_frame(arrived) == data_on_wire


@settings(max_examples=300)
@given(st.binary(max_size=60))
@pytest.mark.parametrize("prefix", [b"", b"\x85\xa5frame\xa3ask\xa2id\x01\xa6target", b"\x83\xa5frame\xa6answer"])
def test_garbage_is_a_protocol_error_and_nothing_else(prefix: bytes, data: bytes) -> None:
    """A peer may send anything, even bytes that are not text."""
    with contextlib.suppress(ProtocolError):
        CODEC.decode_frame(prefix + data)


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_a_body_that_does_not_fit_is_a_protocol_error_and_nothing_else(data: bytes) -> None:
    for kind in (TaskProgress, *REQUESTS[:5]):
        with contextlib.suppress(ProtocolError):
            CODEC.decode_message(kind.__name__, msgspec.Raw(data))


def test_a_unit_that_is_none_is_a_protocol_error() -> None:
    """A hook of ours decodes durations and sizes. Its errors must become those of the codec."""
    kind = registry()["DeployTask"]
    body = msgspec.msgpack.encode({"job": {"checkpointing": {"interval": "soon"}}})
    with pytest.raises(ProtocolError, match="soon"):
        CODEC.decode_message(kind.__name__, msgspec.Raw(body))


def test_an_unknown_message_is_refused_with_a_hint() -> None:
    with pytest.raises(ProtocolError, match="unknown message 'Nonsense'") as refused:
        CODEC.decode_message("Nonsense", CODEC.encode(Done()))
    assert "same version" in refused.value.hint


def test_fields_that_an_older_side_does_not_know_are_passed_over() -> None:
    """A field added to a message does not change the protocol."""
    assert CODEC.decode_answer(registry()["CancelTask"], msgspec.Raw(msgspec.msgpack.encode({"new": 1}))) == Done()
