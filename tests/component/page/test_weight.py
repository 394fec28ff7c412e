"""The page is quick, and an installation has all of it (E15)."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.async_api import Browser

from minflinkd.page.files import FOLDERS, HOME
from tests.component.page.opened import opened
from tests.component.page.world import World

REPOSITORY = Path(__file__).parents[3]
_PAINT = """() => new Promise((found) => {
  new PerformanceObserver((list) => found(list.getEntries()[0].startTime)).observe({ type: "paint", buffered: true });
})"""


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="session")
async def test_the_first_paint_comes_within_half_a_second(browser: Browser, world: World) -> None:
    """With nothing in the browser's cache. Other work on the machine may slow some of the tries down, not all."""
    paints = []
    for _ in range(20):
        async with opened(browser, world.url) as page:
            paints.append(await page.page.evaluate(_PAINT))
        if min(paints) < 500:
            break
    assert min(paints) < 500, paints


def test_a_class_is_styled_in_one_file() -> None:
    """All files apply to every page, so a later one would change what an earlier one has drawn."""
    places: dict[str, set[str]] = {}
    for file in sorted((HOME / "style").glob("*.css")):
        for name in re.findall(r"^\.([\w-]+) \{", file.read_text(encoding="utf-8"), re.MULTILINE):
            places.setdefault(name, set()).add(file.name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_wheel_contains_the_page(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="pip install hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    wanted = {f"minflinkd/page/{path.relative_to(HOME)}" for folder in FOLDERS for path in (HOME / folder).iterdir()}
    assert wanted | {"minflinkd/page/index.html"} <= set(zipfile.ZipFile(wheel).namelist())
