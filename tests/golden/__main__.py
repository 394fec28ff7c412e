"""Write the golden files of this version: `python -m tests.golden`.

Tests read the files of all versions in this directory. Those of a version that is released are never written again:
they are what the processes of that version send and have stored. Until then, write them again when a message or a
record has changed on purpose.
"""

from __future__ import annotations

import asyncio
import shutil
import sys

from minflinkd import __version__
from tests.golden.files import HERE, REPOSITORY, STATE, write_messages
from tests.golden.state import write_state


def main() -> int:
    unreleased = f"## {__version__} - unreleased" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    directory = HERE / __version__
    if directory.exists() and not unreleased:
        print(f"{__version__} is released: its golden files stay as they are", file=sys.stderr)
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    write_messages(directory)
    asyncio.run(write_state(directory / STATE))
    print(f"written: {directory.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
