"""The forms of an answer, and of errors (E10)."""

from __future__ import annotations

import msgspec
import pytest

from minflinkd.cli.exits import sentence
from minflinkd.cli.output import Output, document


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [{"x": None, "y": "ü: [odd]"}]}, "b: 1\na:\n- x: null\n  y: 'ü: [odd]'"),
        (7, "7"),
        ([], "[]"),
        (msgspec.Raw(b'{"jid":"0123"}'), "jid: '0123'"),
    ],
)
def test_yaml_keeps_the_order_and_can_be_read_again(value: object, text: str) -> None:
    assert document(value, Output.YAML) == text


def test_json_is_one_line() -> None:
    assert document({"b": 1, "a": "ü"}, Output.JSON) == '{"b":1,"a":"ü"}'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the job has ended", "The job has ended."),
        ("job.yaml has 2 faults", "job.yaml has 2 faults."),
        ("http://a:1: no TLS", "http://a:1: no TLS."),
        ("no daemon answers at http://127.0.0.1:9", "No daemon answers at http://127.0.0.1:9"),
        ("it failed:\nTraceback", "It failed:\nTraceback"),
        ("is it running?", "Is it running?"),
    ],
)
def test_an_error_is_a_sentence_but_names_stay_as_they_are(text: str, shown: str) -> None:
    assert sentence(text) == shown
