"""What the fixture `minflinkd_job` gives to a test: a function that starts jobs, with all that can be chosen."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minflinkd.testing.job import JobSource, JobUnderTest, Rows, Time, document_of
from minflinkd.testing.session import LocalSession
from minflinkd.testing.version import Setting


class StartJob:
    """Starts jobs under test, and stops them with `close`. `base`: what the path of a job file is relative to."""

    def __init__(self, session: LocalSession, base: Path) -> None:
        self._session = session
        self._base = base
        self._started: list[JobUnderTest] = []

    def __call__(
        self,
        job: JobSource,
        *,
        params: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Rows] | None = None,
        schemas: Mapping[str, str] | None = None,
        watermarks: Mapping[str, tuple[str, str]] | None = None,
        views: Sequence[str] = (),
        parallelism: int = 1,
        clock: Time | None = None,
    ) -> JobUnderTest:
        """Check a job, start it, and let it process the inputs.

        `job`: the path of a job file, a `Job` that was built in Python, a JobGraph, or a document.
        `params`: set or replace those of the job. `inputs`: rows by source; each source yields its rows in one
        micro-batch. `parallelism`: of all tasks.
        `schemas`: by source, the columns in the form of a job file, if the source's own cannot be known without the
        outside world. `watermarks`: by source, column and delay, if the source's function sets the watermark.
        `views`: vertices between sources and sinks whose rows the test reads after a `hot_restart`.
        `clock`: the time of day at which the job starts, for `current_timestamp()`; by default the real one.

        Raises InvalidJobGraph with every fault, as `minflinkd check` reports them.
        """
        setting = Setting(
            base=self._base,
            schemas=schemas or {},
            watermarks=watermarks or {},
            views=tuple(views),
            parallelism=parallelism,
            clock=clock,
        )
        self._session.revive()
        document = document_of(job, self._base).with_params(params or {})
        directory = Path(tempfile.mkdtemp(prefix="job-", dir=self._session.directory))
        started = JobUnderTest.start(self._session, document, setting, directory, inputs or {})
        self._started.append(started)
        return started

    def close(self) -> None:
        """Stop all jobs. Idempotent."""
        while self._started:
            self._started.pop().close()
