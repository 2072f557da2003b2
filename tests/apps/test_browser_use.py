"""The web page as it is used: settings, files, the keyboard, a phone, accessibility, a key."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import KEY, Running

# isort: split
from tests.apps.test_browser import (
    CODE,
    STORY,
    answer_with,
    answers,
    browser,
    choose,
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

SLOW_SUBMITS = """
    addEventListener("submit", () => {
      const end = performance.now() + 700;
      while (performance.now() < end);
    });
"""
"""A busy machine, where a second click is handled long after the message was sent."""


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


def test_the_chats_settings_are_sent_and_kept(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Max tokens").fill("9")
    page.get_by_label("Thinking").select_option("off")
    page.get_by_role("button", name="Close", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, STORY)
    body = request.value.post_data_json
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    sent = {name: body[name] for name in ("temperature", "seed", "max_tokens", "reasoning_effort")}
    assert sent == {"temperature": 0.5, "seed": 7, "max_tokens": 9, "reasoning_effort": "off"}
    assert "cut off at the limit" in page.locator("article.assistant .figures").inner_text()
    page.reload()
    page.get_by_role("button", name="Chat settings").click()
    assert page.get_by_label("Temperature").input_value() == "0.5"


def test_a_chat_has_settings_of_its_own(opened: Any) -> None:
    page = opened()
    answer_with(page, "Yes.")
    say(page, "The first chat.")
    page.keyboard.press("Alt+s")
    page.get_by_role("dialog", name="Settings of this chat").wait_for()
    page.get_by_label("System prompt").fill("Be a pirate.")
    page.get_by_label("Top-k").fill("5")
    page.keyboard.press("Escape")
    page.keyboard.press("Alt+n")
    page.keyboard.press("Alt+s")
    page.get_by_role("dialog", name="Settings of new chats").wait_for()
    assert page.get_by_label("System prompt").input_value() == page.get_by_label("Top-k").input_value() == ""
    page.keyboard.press("Escape")
    page.locator(".sidebar").get_by_role("button", name="The first chat.", exact=True).click()
    page.get_by_text("System prompt").wait_for()
    page.keyboard.press("Alt+s")
    assert page.get_by_label("Top-k").input_value() == "5"
    page.get_by_role("button", name="Reset").click()
    expect(page.get_by_label("Top-k")).to_have_value("")
    expect(page.get_by_label("System prompt")).to_have_value("")


def test_a_number_out_of_its_range_is_refused(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label("Top-p").fill("3")
    page.get_by_text("from 0.01 to 1").wait_for()
    page.get_by_label("Top-p").blur()
    assert page.get_by_label("Top-p").input_value() == ""


def test_json_is_asked_for_by_a_schema(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label("Form").select_option("schema")
    schema = page.get_by_label("JSON schema")
    schema.fill("{city")
    page.get_by_text("Not JSON").wait_for()
    page.keyboard.press("Escape")
    written(page, "Where?").press("Enter")
    page.locator("article .trouble").get_by_text("schema of this chat is not JSON").wait_for()
    page.get_by_role("button", name="Chat settings").click()
    schema.fill('{"enum": ["Oslo", "Rome"]}')
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_label("Version 2 of 2").wait_for()
    ended(page)
    assert json.loads(page.locator(".code code").inner_text()) in ("Oslo", "Rome")
    choose(page, Form="json")
    say(page, "A city, please.")
    page.locator(".code .hljs-punctuation, .code code").last.wait_for()


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
    page.keyboard.press("Alt+i")
    page.locator(".details").wait_for()
    page.keyboard.press("Alt+i")
    page.locator(".details").wait_for(state="detached")
    page.keyboard.press("Alt+r")
    page.get_by_label("Version 2 of 2").wait_for()
    ended(page)
    page.keyboard.press("Alt+Slash")
    page.get_by_role("dialog", name="Keyboard").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog", name="Keyboard").wait_for(state="hidden")
    reached = set()
    for _ in range(50):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.innerText")
        )
    assert {
        "Regenerate",
        "Edit",
        "Chat settings",
        "Model: demo",
        "Search in chats",
        "Message",
        "Attach a text file",
    } <= reached
    page.keyboard.press("Alt+n")
    page.get_by_text("Chat with demo").wait_for()
    assert page.evaluate("document.activeElement.id") == "message"


def test_an_arrow_edits_the_last_message(opened: Any) -> None:
    page = opened()
    answer_with(page, "Yes.")
    say(page, "Is it?")
    page.get_by_label("Message", exact=True).press("ArrowUp")
    editor = page.get_by_label("Edited message")
    expect(editor).to_be_focused()
    editor.fill("Was it?")
    editor.press("Enter")
    page.get_by_label("Version 2 of 2").first.wait_for()
    ended(page)
    assert page.locator("article.user .text").inner_text() == "Was it?"


def test_escape_closes_a_list_before_it_stops_an_answer(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.route("**/v1/chat/completions", lambda _: None)
    written(page, STORY).press("Enter")
    page.locator("article .cursor").wait_for()
    page.get_by_role("button", name="Model: demo").click()
    page.get_by_text("started with this model alone").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("started with this model alone").wait_for(state="hidden")
    assert page.get_by_role("button", name="Stop").is_visible()
    page.keyboard.press("Escape")
    page.locator(".figures").get_by_text("stopped").wait_for()


def test_a_phone_shows_one_column_with_a_drawer(opened: Any) -> None:
    page = opened(viewport={"width": 320, "height": 640}, has_touch=True)
    say(page, CODE)
    figures(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 320
    for name in ("Chats", "Model: demo", "Chat settings", "New chat"):
        box = page.locator("header").get_by_role("button", name=name).bounding_box()
        assert 0 <= box["x"] <= 320 - box["width"], name
    page.get_by_role("button", name="Chats", exact=True).tap()
    expect(page.get_by_role("button", name="Close the list")).to_be_focused()
    for _ in range(8):  # the focus stays in the drawer
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') === null")
    page.get_by_role("button", name="Close the list").tap()
    page.locator("[aria-label='Chats']:focus").wait_for()
    page.get_by_role("button", name="Chat settings").tap()
    page.get_by_role("dialog").wait_for()
    assert page.locator("dialog[open]").evaluate("each => each.scrollWidth <= each.clientWidth")
    page.get_by_role("button", name="Close", exact=True).tap()
    page.get_by_role("button", name="Chats", exact=True).tap()
    page.locator("#sidebar").get_by_role("button", name="New chat").tap()
    page.get_by_text("Chat with demo").wait_for()


def test_the_list_is_put_away_and_stays_so(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.get_by_role("button", name="Chats", exact=True).click()
    page.locator("#sidebar").wait_for(state="detached")
    page.reload()
    page.get_by_text("Chat with demo").wait_for()
    assert page.locator("#sidebar").count() == 0


def test_a_theme_is_chosen(opened: Any) -> None:
    page = opened(color_scheme="light")
    page.get_by_text("Chat with demo").wait_for()
    bright = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Theme").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != bright
    page.reload()
    page.get_by_text("Chat with demo").wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != bright


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme: str, opened: Any) -> None:
    page = opened(color_scheme=scheme)
    page.get_by_text("Chat with demo").wait_for()
    found = violations(page)
    say(page, CODE)
    say(page, STORY)
    found += violations(page)
    choose(page, Decoding="switch")
    page.keyboard.press("Alt+c")
    say(page, STORY)
    figures(page)
    found += violations(page)
    page.get_by_role("button", name="Model: demo").click()
    page.locator("#models").wait_for()
    found += violations(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label("Form").select_option("schema")
    found += violations(page)
    page.get_by_label("Form").select_option("")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Settings", exact=True).click()
    found += violations(page)
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 320, "height": 640})
    found += violations(page)
    answer_with(page, "Blue.", thought="The sky is blue.", prompt_tokens=2000)
    say(page, "Name a colour.")
    page.locator(".thought summary").click()
    found += violations(page)
    assert not found


def violations(page: Any) -> list[str]:
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}"
        for each in Axe().run(page).response["violations"]
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
