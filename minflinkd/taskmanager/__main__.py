"""`python -m minflinkd.taskmanager --config FILE`: the supervisor process of one TaskManager of the daemon."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from minflinkd.runtime import log as logging
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.process import run
from minflinkd.taskmanager.settings import read_settings


def main() -> int:
    """Run it and return the exit code.

    On failure the last line begins with `error: `, for the driver that started it.
    """
    parser = argparse.ArgumentParser(prog="python -m minflinkd.taskmanager", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the settings that the daemon wrote")
    try:
        settings = read_settings(parser.parse_args().config)
        logging.configure(json=settings.log_json, level=settings.log_level)
        asyncio.run(run(settings))
    except MinflinkError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  # for whoever reads the end of the log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
