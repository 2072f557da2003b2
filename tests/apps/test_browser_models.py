"""The web page's models: a choice of those that the server has, and downloads."""

import json
from typing import Any

# isort: split
from tests.apps.test_browser import STORY, answer_with, browser, choose, opened, pytestmark, say, server

# isort: split
from playwright.sync_api import expect

__all__ = ["browser", "opened", "pytestmark", "server"]  # `make test` seeks pytest.mark.serial


def test_a_model_is_chosen_by_its_name(opened: Any) -> None:
    page = opened()
    ids = ["demo", "demo:odd", "demo@plain", "other:1b", "other:1b@plain"]
    models = {"data": [{"id": name, "context_length": 4096} for name in ids]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.reload()
    page.get_by_role("button", name="Model: demo").click()
    listed = page.locator("#models .option")
    assert [each.split("\n")[0] for each in listed.all_inner_texts()] == ["demo", "other:1b"]
    listed.last.click()
    page.get_by_text("Chat with other:1b").wait_for()
    answer_with(page, "Hello.")
    choose(page, Decoding="plain")
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, "Hi")
    assert request.value.post_data_json["model"] == "other:1b@plain"
    page.reload()
    page.get_by_role("button", name="Model: other:1b").wait_for()
    page.keyboard.press("Alt+m")
    page.locator("#models .option").first.click()  # this chat and new ones
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, "Hi")
    assert request.value.post_data_json["model"] == "demo@plain"


def test_the_servers_own_choice_answers_where_none_was_made(opened: Any) -> None:
    page = opened()
    models = {"data": [{"id": name, "context_length": 4096} for name in ("another", "demo", "demo@plain")]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.reload()
    page.get_by_text("Chat with demo").wait_for()  # what /props names
    with page.expect_request("**/v1/chat/completions") as request:
        say(page, STORY)
    assert request.value.post_data_json["model"] == "demo"


def with_library(page: Any, *lines: dict[str, object], status: int = 200) -> None:
    """Have the server say that it serves a library, and answer downloads with these lines."""

    def props(route: Any) -> None:
        route.fulfill(json=route.fetch().json() | {"library": True})

    page.route("**/props", props)
    body = "".join(json.dumps(line) + "\n" for line in lines)
    page.route("**/api/pull", lambda route: route.fulfill(status=status, body=body))
    page.reload()
    page.get_by_role("button", name="Model: demo").click()


def test_a_model_is_downloaded_and_then_listed(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Model: demo").wait_for()
    steps = {"status": "owner/tiny", "total": 100, "completed": 40}, {"status": "success"}
    with_library(page, {"status": "pulling manifest"}, *steps)
    models = {"data": [{"id": name, "context_length": 4096} for name in ("demo", "tiny")]}
    page.route("**/v1/models", lambda route: route.fulfill(json=models))
    page.get_by_label("Model to download").fill("owner/tiny")
    with page.expect_request("**/api/pull") as request:
        page.keyboard.press("Enter")
    assert request.value.post_data_json == {"model": "owner/tiny"}
    expect(page.locator("#models .option span")).to_have_text(["demo", "tiny"])


def test_a_download_that_is_refused_or_fails_says_why(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Model: demo").wait_for()
    with_library(page, {"status": "pulling manifest"}, {"error": "the disk is full"})
    page.get_by_label("Model to download").fill("owner/tiny")
    page.get_by_role("button", name="Download").click()
    page.get_by_text("the disk is full").wait_for()
    page.get_by_role("button", name="Model: demo").click()
    page.unroute("**/api/pull")
    with_library(page, {"error": "no such model"}, status=503)
    page.get_by_label("Model to download").fill("owner/none")
    page.get_by_role("button", name="Download").click()
    page.get_by_text("No such model").wait_for()


def test_a_download_is_hidden(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Model: demo").wait_for()
    with_library(page)
    page.unroute("**/api/pull")
    page.route("**/api/pull", lambda _: None)
    page.get_by_label("Model to download").fill("owner/tiny")
    page.get_by_role("button", name="Download").click()
    page.locator("#models").get_by_role("button", name="Hide").click()
    page.get_by_label("Model to download").wait_for()


def test_a_single_model_is_named(opened: Any) -> None:
    page = opened()
    page.get_by_role("button", name="Model: demo").click()
    page.get_by_text("started with this model alone").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("started with this model alone").wait_for(state="hidden")
