"""`minflinkd demo`: the main job on real data. A TaskManager is killed in the middle, and the result is verified."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.exits import ExitCode, Failure

if TYPE_CHECKING:
    from minflinkd.cli.client import Client

FLIGHTS = 336_776
START_TIMEOUT = 30.0  # seconds until the daemon answers
WARM_TIMEOUT = 180.0  # seconds until two TaskManagers are warm
STOP_TIMEOUT = 30.0


@click.command()
@click.option("--keep", is_flag=True, help="Leave the daemon running and keep its directory.")
@click.option(
    "--files-per-batch", type=click.IntRange(1, 365), default=6, show_default=True, help="Days in a micro-batch."
)
@click.option(
    "--examples", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The examples/ directory."
)
def demo(keep: bool, files_per_batch: int, examples: Path | None) -> None:
    """Run the flights job in a temporary directory, kill its TaskManager, and compare the result with a batch.

    \b
    1. starts a daemon on embedded defaults, with one warm standby TaskManager
    2. replays 336,776 real flights as a stream: a windowed aggregate by carrier and hour, exactly once into Parquet
    3. kills the TaskManager that runs it with SIGKILL in the middle; the job goes on from its last checkpoint
    4. runs the same query as a batch over the same files, and compares row by row
    \b
    Exit codes: 0 the two are equal; 1 they are not, or the job failed.
    \b
    Examples:
      minflinkd demo
      minflinkd demo --keep
    """
    flights = (examples or Path(__file__).parents[2] / "examples") / "flights"
    if not (flights / "flights.yaml").is_file():
        raise Failure(f"There is no {flights}: run the demo in a checkout, or name --examples.", ExitCode.REFUSED)
    base = Path(tempfile.mkdtemp(prefix="minflinkd-demo-"))
    kept = False
    try:
        kept = asyncio.run(Demo(flights, base, files_per_batch, keep).run())
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None
    finally:
        if not kept:
            shutil.rmtree(base, ignore_errors=True)


@dataclass
class Demo:
    flights: Path
    base: Path
    files_per_batch: int
    keep: bool

    async def run(self) -> bool:
        """Run the demo. Returns whether the daemon is left running."""
        from minflinkd.cli.client import Client

        began = time.monotonic()
        events = self.base / "events"
        await self._python(str(self.flights / "unpack.py"), str(events))
        _say(f"unpacked {FLIGHTS:,} flights into {len(list(events.iterdir()))} event files ({_since(began)})")
        daemon = await self._start_daemon()
        try:
            url = await self._url(daemon)
            _say(f"the daemon answers at {url}")
            async with Client(url) as client:
                await self._warm(client)
                job_id = await self._run_job(client, events)
                await self._report(client, job_id, events)
        except BaseException:
            await _stop(daemon)
            raise
        if self.keep:
            _say(f"the daemon (pid {daemon.pid}) is left running at {url}; its files are in {self.base}")
            return True
        await _stop(daemon)
        _say(f"all done in {_since(began)}")
        return False

    # --- the daemon ----------------------------------------------------------------------------------------------

    async def _start_daemon(self) -> asyncio.subprocess.Process:
        """Start a daemon with the embedded defaults, except for a free port and the directory."""
        settings = [
            "rest.port=0",
            "resourcemanager.standby-taskmanagers=1",
            "taskmanager.session.class-archive=false",  # the demo would be over before it is made
        ]
        command = [sys.executable, "-m", "minflinkd", "serve", "--state-dir", str(self.base / "state")]
        command += [part for setting in settings for part in ("--set", setting)]
        with (self.base / "daemon.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    async def _url(self, daemon: asyncio.subprocess.Process) -> str:
        """Return the daemon's URL, from the file that it writes when it is ready."""
        file = self.base / "state" / "daemon.json"
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline and daemon.returncode is None:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
                return str(json.loads(file.read_bytes())["url"])
            await asyncio.sleep(0.05)
        log = (self.base / "daemon.log").read_text(errors="replace")
        raise Failure(f"The daemon did not come up. Its log:\n{log[-4000:]}", ExitCode.DAEMON_FAILED)

    async def _warm(self, client: Client) -> None:
        """Wait for one warm TaskManager for the job. Its standby starts while the job runs."""
        began = time.monotonic()
        while True:
            managers = (await client.task_managers()).taskmanagers
            if ready := [manager for manager in managers if manager.minflinkd.session == "ready"]:
                break
            if time.monotonic() - began > WARM_TIMEOUT:
                raise Failure(f"No TaskManager was ready within {WARM_TIMEOUT:g} s.", ExitCode.DAEMON_FAILED)
            await asyncio.sleep(0.25)
        first = ready[0]
        phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in first.minflinkd.start_phases.items())
        _say(f"TaskManager {first.id} is warm after {_since(began)}" + (f" ({phases})" if phases else ""))

    # --- the job -------------------------------------------------------------------------------------------------

    async def _run_job(self, client: Client, events: Path) -> str:
        """Submit the job, watch it, kill its TaskManager; return its id. Raises Failure if the job does not finish."""
        from minflinkd.cli.submission import submit
        from minflinkd.cli.watch import watch

        params = {"input": str(events), "output": str(self._result), "files_per_batch": self.files_per_batch}
        began = time.monotonic()
        job_id = (await submit(client, self.flights / "flights.yaml", params=params, tell=_say)).jobid
        _say(f"Spark has checked the job, it is stored and accepted ({_since(began)}): {client.url}/jobs/{job_id}")
        killer = asyncio.create_task(self._kill_in_the_middle(client, job_id), name="killer")
        try:
            job = await watch(client, job_id)
        finally:
            killer.cancel()
            (outcome,) = await asyncio.gather(killer, return_exceptions=True)
        if job.state != "FINISHED":
            cause = (await client.exceptions(job_id)).root_exception
            raise Failure(f"The job is {job.state}.\n{cause or ''}", ExitCode.JOB_ENDED_BADLY)
        if outcome is not True:
            raise Failure(f"The job ended before a TaskManager could be killed: {outcome!r}", ExitCode.JOB_ENDED_BADLY)
        return job_id

    async def _kill_in_the_middle(self, client: Client, job_id: str) -> bool:
        """Send SIGKILL to the TaskManager that runs the job, once the job is under way and the standby is warm."""
        while True:
            await asyncio.sleep(0.1)
            job = await client.job(job_id)
            completed = (await client.checkpoints(job_id)).counts.completed
            managers = {manager.id: manager for manager in (await client.task_managers()).taskmanagers}
            task = job.vertices[0]
            runs_on = managers.get(task.minflinkd.taskmanager_id or "")
            standby = [m for m in managers.values() if m is not runs_on and m.minflinkd.session == "ready"]
            under_way = completed >= 2 and task.metrics.read_records >= FLIGHTS // 5
            if job.state == "RUNNING" and runs_on is not None and standby and under_way:
                os.kill(runs_on.minflinkd.pid, signal.SIGKILL)
                _say(f"killed TaskManager {runs_on.id} (pid {runs_on.minflinkd.pid}) with SIGKILL")
                return True

    # --- the proof -----------------------------------------------------------------------------------------------

    async def _report(self, client: Client, job_id: str, events: Path) -> None:
        """Compare the result with the batch and print a report. Raises Failure if they differ."""
        began = time.monotonic()
        _say("running the same query as a batch ...")
        output = await self._python(str(self.flights / "compare.py"), str(events), str(self._result), check=False)
        try:
            found = json.loads(output.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            raise Failure(f"The comparison failed:\n{output[-4000:]}", ExitCode.JOB_ENDED_BADLY) from None
        batch = _since(began)
        job, checkpoints = await client.job(job_id), await client.checkpoints(job_id)
        leftovers = [p for p in self._result.rglob("*") if p.is_file() and ("staged" in p.parts or ".tmp" in p.name)]
        rows = [
            ("flights read", f"{job.minflinkd.source_records:,} that left, of {FLIGHTS:,}"),
            ("result rows", f"{found['stream_rows']:,} streamed, {found['batch_rows']:,} by the batch ({batch})"),
            ("rows that differ", f"{found['missing']} missing, {found['surplus']} surplus"),
            (
                "result files",
                f"{len(list(self._result.glob('part-*')))}, {len(leftovers)} staged or temporary ones left",
            ),
            ("checkpoints", f"{checkpoints.counts.completed} completed, {checkpoints.counts.failed} failed"),
            ("restarts", f"{job.minflinkd.restarts}"),
            ("submission", _phases(job.minflinkd.submission)),
        ]
        rows += [(f"recovery {n}", _phases(r.phases)) for n, r in enumerate(job.minflinkd.recoveries, 1)]
        rows += [("duration", f"{job.duration / 1000:.1f} s"), ("as JSON", f"{client.url}/jobs/{job_id}")]
        _table(rows)
        if not found["equal"] or leftovers:
            raise Failure("The stream's result and the batch's differ.", ExitCode.JOB_ENDED_BADLY)
        _say("the stream's result and the batch's are equal, row by row")

    @property
    def _result(self) -> Path:
        return self.base / "hourly"

    async def _python(self, *arguments: str, check: bool = True) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=self.base
        )
        output, _ = await process.communicate()
        text = output.decode(errors="replace")
        if check and process.returncode:
            raise Failure(f"{arguments[0]} failed:\n{text[-4000:]}", ExitCode.JOB_ENDED_BADLY)
        return text


async def _stop(daemon: asyncio.subprocess.Process) -> None:
    """Send SIGTERM. If the daemon does not end, kill it; its TaskManagers notice that."""
    if daemon.returncode is not None:
        return
    daemon.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT):
            await daemon.wait()
    except TimeoutError:
        daemon.kill()
        await daemon.wait()


def _say(text: str) -> None:
    click.echo(f"{click.style('demo', fg='cyan', bold=True)}  {text}", err=True)


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def _phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items())


def _table(rows: list[tuple[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, title="the flights job", title_justify="left")
    for name, value in rows:
        table.add_row(name, str(value))
    Console().print(table)
