"""A failure names the files and offsets of its micro-batch, as Spark's logs record them (issue 15, 13)."""

from __future__ import annotations

import json
from pathlib import Path

from minflinkd.rpc.plan_sources import EXCHANGE
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.session.query.batch_input import MOST_FILES, failed_input


def source(number: int, vertex: str, kind: str = "FileSource") -> PlanNode:
    return PlanNode(number=number, stateful=False, vertex=vertex, kind=kind)


def offsets(checkpoint: Path, batch: int, *lines: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))


def commit(checkpoint: Path, batch: int) -> None:
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def listed(checkpoint: Path, directory: int, entry: int, *files: tuple[int, str], compact: bool = False) -> None:
    """Write one entry of a file source's log.

    Each file has its path and the number of the entry in which it first came.
    """
    log = checkpoint / "sources" / str(directory)
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "timestamp": 0, "batchId": number}) for number, path in files]
    (log / f"{entry}{'.compact' if compact else ''}").write_text("\n".join(["v1", *lines]))


def log_offset(entry: int) -> str:
    return json.dumps({"logOffset": entry})


def test_the_files_of_the_failed_micro_batch_are_named_and_no_others(tmp_path: Path) -> None:
    """The files are those that the micro-batch was to read, not those of earlier ones."""
    offsets(tmp_path, 0, log_offset(0))
    offsets(tmp_path, 1, log_offset(2))
    commit(tmp_path, 0)
    listed(tmp_path, 0, 0, (0, "file:///in/0.json"))
    listed(tmp_path, 0, 1, (1, "file:///in/1.json"))
    listed(tmp_path, 0, 2, (2, "file:///in/a%20b.json"))
    assert failed_input(tmp_path, (source(0, "events"),)) == "micro-batch 1 read events: /in/1.json, /in/a b.json"


def test_a_compact_entry_gives_its_own_files_only(tmp_path: Path) -> None:
    """Every tenth entry is compact: it repeats all earlier entries."""
    offsets(tmp_path, 0, log_offset(8))
    offsets(tmp_path, 1, log_offset(9))
    commit(tmp_path, 0)
    listed(tmp_path, 0, 9, *((number, f"s3://bucket/{number}.json") for number in range(10)), compact=True)
    assert failed_input(tmp_path, (source(0, "events"),)) == "micro-batch 1 read events: s3://bucket/9.json"


def test_many_files_are_counted(tmp_path: Path) -> None:
    """A message has no room for a thousand names."""
    offsets(tmp_path, 0, log_offset(0))
    listed(tmp_path, 0, 0, *((0, f"/in/{number}") for number in range(MOST_FILES + 37)))
    said = failed_input(tmp_path, (source(0, "events"),))
    assert said.startswith("micro-batch 0 read events: /in/0, ")
    assert said.endswith("/in/4 and 37 more")


def test_another_source_tells_from_where_to_where_and_one_without_news_nothing(tmp_path: Path) -> None:
    """Kafka's offsets are quoted as Spark writes them.

    An exchange has no log of files: nobody looks there for a record.
    """
    sources = (source(0, "left", EXCHANGE), source(1, "views", "Kafka"), source(2, "files"), source(3, "still"))
    offsets(tmp_path, 3, '{"position":1}', '{"views":{"0":12}}', log_offset(0), log_offset(5))
    offsets(tmp_path, 4, '{"position":2}', '{"views":{"0":15}}', log_offset(1), log_offset(5))
    commit(tmp_path, 3)
    listed(tmp_path, 1, 1, (1, "/in/1"))  # the directories below sources are counted without exchanges
    assert failed_input(tmp_path, sources) == (
        'micro-batch 4 read views: from {"views":{"0":12}} to {"views":{"0":15}}; files: /in/1'
    )


def test_nothing_is_said_where_no_micro_batch_had_begun(tmp_path: Path) -> None:
    """Examples are the time before the first micro-batch, between two, and a log that cannot be read."""
    sources = (source(0, "events"),)
    assert failed_input(tmp_path, sources) == ""
    offsets(tmp_path, 0, log_offset(0))
    commit(tmp_path, 0)
    assert failed_input(tmp_path, sources) == ""
    (tmp_path / "offsets" / "1").write_text("v9\n")
    assert failed_input(tmp_path, sources) == ""


def test_a_log_in_a_form_that_is_not_known_keeps_no_failure_from_being_told(tmp_path: Path) -> None:
    """The input is described for a person. Only the failure itself decides whether the job restarts."""
    offsets(tmp_path, 0, log_offset(0))
    log = tmp_path / "sources" / "0" / "0"
    log.parent.mkdir(parents=True)
    for line in ('{"file": "/in/0"}', '["/in/0"]', "7"):
        log.write_text(f"v1\n{line}")
        assert failed_input(tmp_path, (source(0, "events"),)) == "", line
    offsets(tmp_path, 0, '{"logOffset": null}')
    assert failed_input(tmp_path, (source(0, "events"),)) == ""
