"""The web page of a server of several models, which are loaded when they are asked."""

from typing import Any

# isort: split
from tests.apps.test_browser import STORY, browser, ended, opened, pytestmark, written
from tests.apps.test_serve_several import Several, folder, library, server

# isort: split
from playwright.sync_api import expect

__all__ = ["browser", "folder", "library", "opened", "pytestmark", "server"]


def test_a_page_that_opens_loads_no_model_and_one_that_asks_tells_of_it(opened: Any, server: Several) -> None:
    page = opened()
    page.get_by_text("Chat with ").wait_for()
    (name,) = [each.removeprefix("Chat with ") for each in page.locator("h2").all_inner_texts()]
    page.keyboard.press("Alt+s")
    expect(page.get_by_label("Decoding").locator("option")).to_have_count(3)  # its modes are known
    page.keyboard.press("Escape")
    assert server.opened == []
    server.slow.set()
    written(page, STORY).press("Enter")
    page.get_by_text(f"Loading {name}", exact=True).wait_for()
    with server.models._progress[name].bar("preparing weights, MB", 8) as advance:
        advance(2)
        page.get_by_text(f"Loading {name}: preparing weights, 25%", exact=True).wait_for()
    server.slow.clear()
    ended(page)
    assert server.opened == [name]
    assert not page.get_by_text("Loading").count()
    page.keyboard.press("Alt+s")
    expect(page.get_by_label("Temperature")).not_to_have_attribute("placeholder", "")
