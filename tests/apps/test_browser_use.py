"""The web page as it is used: stored conversations, settings, files, the keyboard, a phone, accessibility, a key."""

from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import KEY, Running

# isort: split
from tests.apps.test_browser import (
    CODE,
    STORY,
    answers,
    browser,
    ended,
    figures,
    opened,
    pytestmark,
    say,
    server,
    written,
)

# isort: split
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from edgedecode.apps.serve.guards import Limits

__all__ = ["browser", "opened", "pytestmark", "server"]  # `make test` seeks pytest.mark.serial

SERIOUS = ("serious", "critical")


SLOW_SUBMITS = """
    addEventListener("submit", () => {
      const end = performance.now() + 700;
      while (performance.now() < end);
    });
"""
"""A busy machine, where a second click is handled long after the message was sent."""


def test_a_reload_keeps_the_conversations(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    page.get_by_role("button", name="New chat").first.click()
    say(page, CODE)
    before = answers(page)
    panel = figures(page)["accepted"]
    page.reload()
    page.locator("article.assistant .text").wait_for()
    assert answers(page) == before
    assert figures(page)["accepted"] == panel
    page.locator(".sidebar").get_by_role("button", name=STORY, exact=True).click()
    page.get_by_text("fox").first.wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=f"Delete {STORY}").click()
    page.reload()
    page.get_by_text("Chat with demo").wait_for()
    assert page.locator(".sidebar .entry").all_inner_texts() == [f"{CODE[:59]}…"]


@pytest.mark.parametrize(
    "entry",
    [
        "{",
        "[]",
        '{"id": "x", "turns": null, "chosen": null}',
        '{"id": "x", "turns": {"a": {"id": "a", "role": "assistant", "answer": {}}}, "chosen": {"": "a"}}',
        '{"id": "x", "turns": {"a": {"id": "a", "role": "user", "parent": "a"}}, "chosen": {"": "a", "a": "a"}}',
    ],
)
def test_odd_stored_conversations_do_not_break_the_page(entry: str, opened: Any) -> None:
    page = opened()
    page.evaluate("entry => localStorage.setItem('edgedecode.conversation.x', entry)", entry)
    page.evaluate('localStorage.setItem(\'edgedecode.settings\', \'{"temperature": "hot", "theme": 7}\')')
    for address in ("#x", "#constructor", ""):
        page.goto("about:blank")
        page.go_back()
        page.evaluate("address => { location.hash = address; location.reload() }", address)
        page.get_by_role("button", name="New chat").first.click()
        page.get_by_text("Chat with demo").wait_for()
    say(page, STORY)
    assert answers(page)


def test_a_full_storage_is_reported(opened: Any) -> None:
    page = opened()
    page.evaluate("""() => {
      for (let size = 1 << 22; size; size >>= 1)
        try { for (let n = 0; ; n++) localStorage.setItem(`filler ${size} ${n}`, "x".repeat(size)) } catch {}
    }""")
    say(page, STORY)
    page.get_by_role("alert").get_by_text("storage is full").wait_for()
    page.evaluate(
        "for (const name of Object.keys(localStorage)) if (/^filler/.test(name)) localStorage.removeItem(name)"
    )
    page.get_by_role("button", name="Keep again").click()
    before = answers(page)
    page.reload()
    page.locator("article.assistant .text").wait_for()
    assert answers(page) == before


def test_a_message_is_not_sent_twice_and_an_edit_waits(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    page.get_by_role("button", name="Edit", exact=True).click()
    expect(page.get_by_label("Edited message")).to_be_focused()  # on a busy machine it takes the next field's text
    page.route("**/v1/chat/completions", lambda _: None)
    written(page, "And now?")
    page.evaluate(SLOW_SUBMITS)
    page.get_by_role("button", name="Send").last.dblclick()
    editor = page.get_by_label("Edited message")
    editor.press("Enter")
    assert editor.is_visible()  # the running answer is not lost
    page.locator("article .cursor").wait_for()
    page.get_by_role("button", name="Stop").wait_for()


def test_settings_are_sent_and_kept(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Most tokens").fill("9")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Close", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, STORY)
    body = request.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert {name: body[name] for name in ("temperature", "seed", "max_tokens")} == {
        "temperature": 0.5,
        "seed": 7,
        "max_tokens": 9,
    }
    assert "cut off at the limit" in page.locator("article.assistant small").inner_text()
    page.reload()
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Temperature").input_value() == "0.5"


def test_a_text_file_is_attached_and_others_are_refused(opened: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a ```fence``` and naïve text", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\xff")
    page = opened()
    page.locator("input[type=file]").set_input_files([tmp_path / "notes.txt", tmp_path / "picture.png"])
    page.get_by_role("alert").get_by_text("picture.png is not a text file").wait_for()
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, "What is in it?")
    content = request.value.post_data_json["messages"][-1]["content"]
    assert content == "notes.txt:\n````\na ```fence``` and naïve text\n````\n\nWhat is in it?"


def test_everything_works_with_the_keyboard(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.keyboard.type(STORY)  # the message field has the focus
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Keep it short.")
    page.keyboard.press("Enter")
    ended(page)
    assert page.locator("article.user .text").inner_text() == f"{STORY}\nKeep it short."
    page.keyboard.press("Alt+p")
    assert page.locator("#panel").count() == 0
    page.keyboard.press("Alt+Slash")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.keyboard.press("Escape")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    assert {"Regenerate", "Edit", "Settings", "Message", "Attach a text file"} <= reached
    page.keyboard.press("Alt+n")
    page.get_by_text("Chat with demo").wait_for()
    assert page.evaluate("document.activeElement.id") == "message"


def test_a_phone_shows_one_column_with_drawers(opened: Any) -> None:
    page = opened(viewport={"width": 320, "height": 640}, has_touch=True)
    say(page, CODE)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    assert page.locator("header h1").bounding_box()["width"] > 40
    page.get_by_role("button", name="How the answer was made").tap()
    assert page.locator("#panel").bounding_box()["x"] >= 0
    for _ in range(8):  # the focus stays in the drawer
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') === null")
    page.get_by_role("button", name="Close the panel").tap()
    page.locator("[aria-label='How the answer was made']:focus").wait_for()
    page.get_by_role("button", name="Conversations", exact=True).tap()
    page.get_by_role("button", name="New chat").tap()
    page.get_by_text("Chat with demo").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_has_no_serious_finding(scheme: str, opened: Any) -> None:
    page = opened(color_scheme=scheme)
    found = serious(page)
    say(page, CODE)
    say(page, STORY)
    found += serious(page)
    page.get_by_label("Mode", exact=True).select_option("switch")
    page.keyboard.press("Alt+c")
    say(page, STORY)
    found += serious(page)
    page.get_by_role("button", name="Settings").click()
    found += serious(page)
    page.set_viewport_size({"width": 360, "height": 740})
    found += serious(page)
    assert not found


def serious(page: Any) -> list[str]:
    page.wait_for_timeout(100)
    violations = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}"
        for each in violations
        if each["impact"] in SERIOUS
    ]


def test_a_key_is_asked_for_and_used(opened: Any, server: Running) -> None:
    with Running(server.pair, Limits(key=KEY)) as guarded:
        page = opened(at=guarded)
        page.get_by_label("Key, as in the file").fill(KEY)
        page.keyboard.press("Enter")
        page.get_by_text("Chat with demo").wait_for()
        say(page, STORY)
        assert answers(page)[0]


def test_a_server_that_is_gone_is_reported(opened: Any, server: Running) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=503, body='{"error": {"message": "busy"}}'))
    written(page, STORY).press("Enter")
    page.locator("article .trouble").get_by_text("Busy").wait_for()
    assert page.evaluate("document.activeElement.id") == "message"
