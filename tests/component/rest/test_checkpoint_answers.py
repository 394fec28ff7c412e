"""What clients get about checkpoints does not change unnoticed.

`checkpoint_answers.json` has the answers about `checkpoint_statistics.COMPLETE`. To change an answer on purpose, change
it there too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.rest.checkpoint_statistics import COMPLETE, COMPLETE_OPTIONS
from tests.unit.rest.parties import RUNNING, Dispatcher

Http = aiohttp.ClientSession

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("checkpoint_answers.json").read_text())


@pytest.fixture(autouse=True)
def complete(dispatcher: Dispatcher) -> None:
    dispatcher.checkpoints, dispatcher.checkpoint_options = COMPLETE, COMPLETE_OPTIONS


@pytest.mark.parametrize("path", [path for path in ANSWERS if path != "metrics"])
async def test_an_answer_has_the_same_content_in_the_same_order(http: Http, path: str) -> None:
    """Flink's clients and scripts read these fields (C30, E1)."""
    async with http.get(f"/jobs/{RUNNING}/{path}") as response:
        answer = {"status": response.status, "body": await response.json()}
    assert answer == ANSWERS[path]
    assert json.dumps(answer) == json.dumps(ANSWERS[path]), "the order of fields, or 1 against 1.0"


async def test_every_metric_of_checkpoints_is_there_with_its_value(http: Http) -> None:
    """A metric that disappears makes an alert silent (E30)."""
    async with http.get("/metrics") as response:
        text = await response.text()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {_named(s.name, s.labels): s.value for s in samples if s.name.startswith("minflinkd_checkpoint")}
    assert found == ANSWERS["metrics"]


def _named(name: str, labels: dict[str, str]) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in sorted(labels.items()) if key != "job")])
