"""The web page's chats: kept, searched, exported and imported."""

import json
from pathlib import Path
from typing import Any

import pytest

# isort: split
from tests.apps.test_browser import CODE, STORY, answer_with, answers, browser, figures, opened, pytestmark, say, server

# isort: split
from playwright.sync_api import expect

from edgedecode.apps.chat.saved_messages import load_messages

__all__ = ["browser", "opened", "pytestmark", "server"]  # `make test` seeks pytest.mark.serial


def test_a_reload_keeps_the_conversations(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    page.get_by_role("button", name="New chat").first.click()
    say(page, CODE)
    before = answers(page)
    rounds = figures(page)["rounds"]
    page.reload()
    page.locator("article.assistant .text").wait_for()
    assert answers(page) == before
    assert figures(page)["rounds"] == rounds
    page.locator(".sidebar").get_by_role("button", name=STORY, exact=True).click()
    page.get_by_text("fox").first.wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator(".sidebar .current").hover()
    page.get_by_role("button", name=f"Delete {STORY}").click()
    page.reload()
    page.get_by_text("Chat with demo").wait_for()
    assert page.locator(".sidebar li .entry").all_inner_texts() == [f"{CODE[:59]}…"]


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
    page.evaluate("localStorage.setItem('edgedecode.settings', '{\"theme\": 7, \"sidebar\": 0}')")
    page.evaluate(
        'localStorage.setItem(\'edgedecode.start\', \'{"system": 1, "options": {"seed": "x", "format": 3}}\')'
    )
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


def test_chats_are_searched(opened: Any) -> None:
    page = opened()
    for question, answer in (("Of boats", "They float."), ("Of birds", "They fly.")):
        answer_with(page, answer)
        say(page, question)
        page.keyboard.press("Alt+n")
        page.get_by_text("Chat with demo").wait_for()
    entries = page.locator(".sidebar li .entry")
    page.keyboard.press("Alt+l")
    search = page.get_by_label("Search in chats")
    expect(search).to_be_focused()
    search.fill("FLOAT")
    expect(entries).to_have_text(["Of boats"])
    search.fill("trains")
    page.get_by_text("No chat has “trains”.").wait_for()
    search.press("Escape")
    expect(entries).to_have_count(2)


def test_chats_are_exported_and_imported(opened: Any, tmp_path: Path) -> None:
    page = opened()
    answer_with(page, "They float.")
    say(page, "Of boats")
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export this chat").click()
    download.value.save_as(tmp_path / "chat.json")
    messages = [(each.role, each.content) for each in load_messages(tmp_path / "chat.json")]  # the terminal's /load
    assert messages == [("system", "Be brief."), ("user", "Of boats"), ("assistant", "They float.")]

    other = opened()
    other.get_by_text("Chat with demo").wait_for()
    assert taken(other, tmp_path / "chat.json") == "chat.json: 1 chat imported."
    assert taken(other, tmp_path / "chat.json") == "chat.json: 0 chats imported, 1 known already."
    other.get_by_role("button", name="Close", exact=True).click()
    other.locator(".sidebar li .entry").click()
    expect(other.locator("article.assistant .text")).to_have_text("They float.")
    assert other.locator(".figures").inner_text() == page.locator(".figures").inner_text()
    with other.expect_download() as download:
        other.get_by_role("button", name="Settings", exact=True).click()
        other.get_by_role("button", name="Export all").click()
    assert json.loads(Path(download.value.path()).read_text(encoding="utf-8"))["chats"][0]["title"] == "Of boats"


def taken(page: Any, file: Path) -> str:
    """Import a file of chats; return what the page says."""
    if not page.get_by_role("dialog").is_visible():
        page.get_by_role("button", name="Settings", exact=True).click()
    before = page.get_by_role("dialog").get_by_role("alert").all_inner_texts()
    page.get_by_label("Files with chats").set_input_files(file)
    said = page.get_by_role("dialog").get_by_role("alert")
    expect(said).not_to_have_text(before[0] if before else "")
    return str(said.inner_text())


def test_the_terminals_files_and_nonsense_are_imported_as_they_can(opened: Any, tmp_path: Path) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    files = {
        "saved": '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}',
        "text": "no JSON",
        "empty": "[]",
        "odd": '{"chats": [7, {"id": 3}, {"id": ""}], "messages": "x"}',
        "roles": '{"messages": [null, {"role": "user"}, {"role": "tool", "content": "x"}]}',
    }
    said = {}
    for name, text in files.items():
        (tmp_path / f"{name}.json").write_text(text, encoding="utf-8")
        said[name] = taken(page, tmp_path / f"{name}.json").removeprefix(f"{name}.json")
    assert said == {"saved": ": 1 chat imported.", "text": " is not JSON."} | dict.fromkeys(
        ("empty", "odd", "roles"), " has no chats."
    )
    page.get_by_role("button", name="Close", exact=True).click()
    page.locator(".sidebar li .entry").click()
    expect(page.locator("article .text")).to_have_text(["Hi", "Hello."])


def test_a_chat_is_copied_as_markdown(opened: Any) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    answer_with(page, "They *float*.")
    say(page, "Of boats")
    page.get_by_role("button", name="Chat settings").click()
    page.get_by_role("button", name="Copy as Markdown").click()
    page.get_by_text("Copied.").wait_for(state="attached")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "# Of boats\n\n**You:**\n\nOf boats\n\n**demo:**\n\nThey *float*.\n"
