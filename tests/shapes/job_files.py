"""The files of a shape in a directory: its module, its input and the static table; and a job of its own with them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster import write_job
from tests.shapes.shape import Shape, from_files
from tests.shapes.sources import write_file, write_table


def write_job_of(shape: Shape, base: Path) -> Path:
    """Write a job of its own: its file, its module, all its input, and what its sinks must hold. Return the job file.

    What Kafka would bring comes from files.
    """
    shape = from_files(shape)
    lay_out(shape, base)
    for vertex, source in shape.sources.items():
        for number in range(source.files if source.format != "rate" else 0):
            write_file(base / "in" / vertex, source, number)
    wanted = {sink: sorted(map(list, rows.elements())) for sink, rows in shape.batch().items()}
    (base / "wanted.json").write_text(json.dumps(wanted, indent=1))
    return write_job(base / "job/job.json", shape.document(base))


def lay_out(shape: Shape, base: Path) -> None:
    for vertex in shape.sources:
        (base / "in" / vertex).mkdir(parents=True)
    (base / "job").mkdir()
    (base / "job/shape.py").write_text(shape.module())
    write_table(base / "table")
