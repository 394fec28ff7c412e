"""A job's state as rows on the page (E19c)."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest
from playwright.async_api import Browser, Locator, expect

from minflinkd.rpc import job_state as j
from minflinkd.runtime.errors import Conflict
from tests.component.page.checkpoints_to_show import LAST
from tests.component.page.opened import Opened, opened
from tests.component.page.steering.state_to_show import LONG, SAVEPOINT
from tests.component.page.steering.world import Steered, asking, steered
from tests.component.page.world import FLIGHTS
from tests.component.rest.access_world import TOKENS
from tests.servers.install import AXE
from tests.shortened import first

pytestmark = pytest.mark.asyncio(loop_scope="session")

STATE = f"jobs/{FLIGHTS}/state"


@pytest.fixture
def place() -> str:
    return STATE


def region(page: Opened, name: str) -> Locator:
    return page.page.get_by_role("region", name=name, exact=True)


def choice(page: Opened, name: str) -> Locator:
    """Return a list to choose from. Its whole name is compared: other pages have regions such as "Task hourly"."""
    return page.page.get_by_role("combobox", name=name, exact=True)


async def choose(among: Locator, text: str) -> None:
    """Choose what has `text` in its name. The whole name changes every second: it says how long ago something was."""
    value = await among.locator("option", has_text=text).get_attribute("value")
    await among.select_option(value=value)


async def read(page: Opened) -> None:
    await page.page.get_by_role("button", name="Read it").click()


async def test_rows_are_shown_with_how_many_there_are(page: Opened, world: Steered) -> None:
    """Fields of keys and values are columns, all digits of a long number are there, and the limit is said in words."""
    await read(page)
    rows = region(page, "Rows")
    await expect(rows).to_contain_text("The first 7 of 1,200 rows")
    await expect(rows.locator("thead tr").last).to_have_text(re.compile("carrier.*window.start.*count.*sum.*last"))
    await expect(rows.locator("tbody tr").first).to_contain_text(f"AA2024-01-01 10:00:00{LONG}0.5null")
    await expect(rows.locator("tbody tr").last).to_contain_text("longer than 16,384 characters")
    [asked] = world.state.asked
    assert (asked.job_id, asked.vertex, asked.checkpoint, asked.timeout) == (FLIGHTS, "by_plane", "", 60.0)
    assert (asked.question.limit, asked.question.totals) == (100, True)


async def test_sizes_skew_and_largest_keys_are_shown_by_store(page: Opened) -> None:
    """What cannot be read says why."""
    await read(page)
    stores = region(page, "Stores")
    await expect(stores.locator("tbody tr").first).to_contain_text("0Aggregatehourly1,2001,20079.1 KiB4.62")
    await expect(stores.get_by_role("img").first).to_have_attribute(
        "aria-label", "8 partitions; the largest, 0, has 39.1 KiB in 600 rows"
    )
    await expect(stores).to_contain_text("its schema is too old")
    keys = region(page, "Largest keys of 0")
    await expect(keys).to_contain_text("6 of 1,200 keys, the largest first")
    await expect(keys.locator("tbody tr").first).to_contain_text("AA2024-01-01 10:00:0093.91 KiB0")


async def test_checkpoint_task_store_and_key_are_chosen(page: Opened, world: Steered) -> None:
    """What was asked is in the address, so that somebody else can be sent there. A savepoint is named by its path."""
    await choose(choice(page, "Checkpoint"), "savepoint 60")
    await choice(page, "Task").select_option("hourly")
    await choice(page, "Task").select_option("by_plane")
    await choice(page, "Store").select_option("1")
    await page.page.get_by_role("textbox", name="Key").fill("carrier=AA, window.start=2024-01-01 10:00:00")
    await choice(page, "Rows at most").select_option("1000")
    await choice(page, "Time at most").select_option("300")
    await read(page)
    await expect(region(page, "Rows")).to_contain_text("1 row: all that match")
    await expect(page.page.get_by_text(f"savepoint {SAVEPOINT} of")).to_be_visible()
    [asked] = world.state.asked
    assert asked.checkpoint.startswith("s3://lake/savepoints/")
    assert (asked.vertex, asked.timeout) == ("by_plane", 300.0)
    assert (asked.question.store, asked.question.limit) == ("1", 1000)
    assert json.loads(asked.question.key) == {"carrier": "AA", "window.start": "2024-01-01 10:00:00"}
    await page.page.reload()
    await expect(page.page.get_by_role("textbox", name="Key")).to_have_value(
        "carrier=AA, window.start=2024-01-01 10:00:00"
    )
    await expect(choice(page, "Store")).to_have_value("1")
    assert len(world.state.asked) == 1, "nothing is read before somebody asks"


async def test_another_checkpoint_is_named_by_its_path(page: Opened, world: Steered) -> None:
    await choice(page, "Checkpoint").select_option(label="another one …")
    await page.page.get_by_label("Number or path").fill("s3://elsewhere/savepoint-1")
    await page.page.get_by_label("Number or path").press("Tab")
    await read(page)
    await expect(region(page, "Rows")).to_be_visible()
    assert world.state.asked[0].checkpoint == "s3://elsewhere/savepoint-1"


async def test_a_select_answers_with_columns(page: Opened, world: Steered) -> None:
    """Without totals, which need all rows."""
    await page.page.get_by_role("button", name="SELECT").click()
    await expect(page.page.get_by_role("button", name="Read it")).to_be_disabled()
    await page.page.get_by_label("SELECT").and_(page.page.locator("textarea")).fill("SELECT key.carrier FROM state")
    await read(page)
    result = region(page, "Result")
    await expect(result).to_contain_text("All 2 rows, of store 0")
    await expect(result.locator("tbody tr").first).to_have_text(f"AA{LONG}")
    [asked] = world.state.asked
    assert (asked.question.sql, asked.question.totals) == ("SELECT key.carrier FROM state", False)


async def test_what_grew_between_two_checkpoints_is_shown(page: Opened, world: Steered) -> None:
    """Only earlier ones are offered. What is in one of them alone has no counts of keys."""
    await page.page.get_by_role("button", name="What grew").click()
    since = choice(page, "Since")
    await expect(since.locator("option", has_text=f"checkpoint {LAST},")).to_have_count(0)
    await choose(since, "savepoint 60")
    await read(page)
    rows = region(page, "What grew").locator("tbody tr")
    await expect(rows.first).to_contain_text("1,000 → 1,200")
    await expect(rows.first).to_contain_text("230300")
    await expect(rows.last).to_contain_text("\N{EN DASH} → 40")
    await expect(region(page, "Keys of 0 that grew most")).to_contain_text("AA2 → 996 B → 3.91 KiB")
    [asked] = world.state.asked
    assert isinstance(asked, j.CompareJobState)
    assert (asked.before.startswith("s3://"), asked.after, asked.vertex) == (True, "", "by_plane")


async def test_a_reading_shows_that_it_goes_on_and_is_given_up(page: Opened, world: Steered) -> None:
    """It may take minutes. Who gives up can ask anew, and no late answer comes in between."""
    world.state.free.clear()
    await read(page)
    await expect(page.page.get_by_text("A TaskManager lays out 29.6 MiB and Spark reads them")).to_be_visible()
    await expect(page.page.get_by_text(re.compile(r"[1-9] s of 1 min"))).to_be_visible()
    await page.page.get_by_role("button", name="Give up").click()
    await expect(
        page.page.get_by_text("Given up. The TaskManager ends the reading by itself, after 1 min")
    ).to_be_visible()
    world.state.free.set()
    await read(page)
    await expect(region(page, "Rows")).to_be_visible()
    page.forget_complaints()


async def test_a_refusal_is_shown_in_the_daemons_words(page: Opened, world: Steered) -> None:
    world.state.error = Conflict("this SELECT is not allowed: no joins", hint="read one store")
    await read(page)
    alert = page.page.get_by_role("alert")
    await expect(alert).to_contain_text("this SELECT is not allowed: no joins")
    await expect(alert).to_contain_text("read one store")
    world.state.error = None
    await page.page.get_by_role("button", name="Try again").click()
    await expect(region(page, "Rows")).to_be_visible()
    await expect(alert).to_have_count(0)
    page.forget_complaints()


async def test_who_may_not_look_at_state_is_told_why(browser: Browser) -> None:
    """Nothing of it is asked for."""
    async with steered(asking()) as world, opened(browser, world.url, place=None) as window:
        page = window.page
        await page.goto(world.url)
        await page.get_by_label("Token").fill(TOKENS["view"].text)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".connection.live")).to_be_visible()
        await window.go(STATE)
        await expect(
            page.get_by_text("To look at state needs the role operate, as keys and values are")
        ).to_be_visible()
        await expect(page.get_by_text("You are view, with the role view.")).to_be_visible()
        await window.go(f"jobs/{FLIGHTS}/checkpoints/{LAST}")
        await expect(page.get_by_text("to restore the job needs the role submit")).to_be_visible()
        assert world.state.asked == []
        window.forget_complaints()


async def test_it_is_reached_from_a_checkpoint_and_from_the_graph(page: Opened, world: Steered) -> None:
    """With the checkpoint and the task chosen already."""
    await page.go(f"jobs/{FLIGHTS}/checkpoints/{SAVEPOINT}")
    await page.page.get_by_role("link", name="state of out").click()
    await expect(page.page.get_by_text("out keeps no state in this checkpoint.")).to_be_visible()
    assert await choice(page, "Checkpoint").input_value() == ("s3://lake/savepoints/savepoint-0f0f0f-9c1e77")
    await page.go(f"jobs/{FLIGHTS}?task=hourly")
    await region(page, "Task hourly").get_by_role("link", name="look at it").click()
    await expect(choice(page, "Task")).to_have_value("hourly")


async def test_a_job_without_state_says_so(page: Opened, world: Steered) -> None:
    world.state.tasks = ()
    await page.page.reload()
    await expect(page.page.get_by_text("No task of the job keeps state in this checkpoint.")).to_be_visible()
    await expect(page.page.get_by_role("button", name="Read it")).to_have_count(0)


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make servers)")
@pytest.mark.parametrize("theme", first(["light", "dark"]))
async def test_what_is_shown_is_accessible(browser: Browser, world: Steered, theme: Literal["light", "dark"]) -> None:
    """Rows, a SELECT, growth, and a reading under way; at 360 pixels only tables scroll."""
    async with opened(browser, world.url, theme=theme, width=360, height=740, place=STATE) as page:
        faults: dict[str, Any] = {}

        async def look(what: str, shown: Locator) -> None:
            await expect(shown).to_be_visible()
            assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360, what
            if found := await page.faults():
                faults[what] = found

        await read(page)
        await look("rows", region(page, "Rows"))
        await page.page.get_by_role("button", name="SELECT").click()
        await page.page.locator("textarea").fill("SELECT 1 FROM state")
        await read(page)
        await look("select", region(page, "Result"))
        await page.page.get_by_role("button", name="What grew").click()
        await choice(page, "Since").select_option(index=1)
        await read(page)
        await look("growth", region(page, "What grew"))
        world.state.free.clear()
        await read(page)
        await look("reading", page.page.get_by_role("button", name="Give up"))
        world.state.free.set()
        assert faults == {}
        assert await page.violations() == []


async def test_how_many_rows_are_shown_is_said_in_words(modules: Opened) -> None:
    cases = {
        "100, {total: 1200, truncated: true}": "The first 100 of 1,200 rows",
        "100, {total: 1200, truncated: true, filtered: true}": "The first 100 rows; there are more",
        "100, {truncated: true}": "The first 100 rows; there are more",
        "3, {total: 3, truncated: false}": "All 3 rows",
        "1, {total: 3, filtered: true}": "1 row: all that match",
        "0, {total: 3, filtered: true}": "No row matches",
        "0, {total: 0}": "No rows",
    }
    asked = ", ".join(f"m.extent({one})" for one in cases)
    assert await modules.ask("app/staterows.js", f"[{asked}]") == list(cases.values())


async def test_a_key_is_a_text_or_fields(modules: Opened) -> None:
    """As `minflinkd state --key`: a text with a sign of equality inside is a text."""
    cases = {
        " AA ": "AA",
        "": "",
        "carrier=AA": '{"carrier":"AA"}',
        "a=1,b = x y": '{"a":"1","b":"x y"}',
        "a=1,b": "a=1,b",
        '{"a":"=1,"}': '{"a":"=1,"}',
    }
    asked = ", ".join(f"m.keyOf({json.dumps(one)})" for one in cases)
    assert await modules.ask("app/staterows.js", f"[{asked}]") == list(cases.values())


async def test_keys_become_columns_if_they_are_alike(modules: Opened) -> None:
    cases: dict[str, list[str]] = {
        '[{"a":1,"w":{"s":2,"e":3}},{"b":null}]': ["a", "w.s", "w.e", "b"],
        '[null,{"a":[1]}]': ["a"],
        '["x",{"a":1}]': [""],
        "[null]": [""],
        "[{}]": [""],
    }
    asked = ", ".join(f"m.columnsOf({one})" for one in cases)
    assert await modules.ask("app/staterows.js", f"[{asked}]") == list(cases.values())


async def test_no_digit_of_a_long_number_is_lost(modules: Opened) -> None:
    text = f'{{"a": {LONG}, "b": 1.5, "c": -12345678901234567890, "d": "7", "e": 1e300, "f": 0.1}}'
    found = await modules.ask("app/api.js", f"m.exactly({json.dumps(text)})")
    assert found == {"a": str(LONG), "b": 1.5, "c": "-12345678901234567890", "d": "7", "e": 1e300, "f": 0.1}
