"""`python -m minflinkd.taskmanager --config FILE`: the supervisor process of one TaskManager."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from minflinkd.runtime import log as logging
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.settings import TaskManagerSettings, read_settings
from minflinkd.taskmanager.supervisor import TaskManager


async def run(settings: TaskManagerSettings) -> None:
    """Until a signal, the ResourceManager or the loss of it ends the TaskManager."""
    manager = TaskManager(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, manager.exit_requested.set)
    async with manager:
        await manager.exit_requested.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m minflinkd.taskmanager", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the settings that the daemon wrote")
    try:
        settings = read_settings(parser.parse_args().config)
    except MinflinkError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # before logging is set up
        return 2
    logging.configure(json=settings.log_json)
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
