"""The web page in a real browser: chat, stop, versions, models, modes, adapters, details of an answer."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.apps.serving import Running

# isort: split
pytest.importorskip("playwright", reason="the test extra is not installed")
pytest.importorskip("axe_playwright_python", reason="the test extra is not installed")

from playwright.sync_api import expect, sync_playwright

import edgedecode
from edgedecode import SessionOptions
from edgedecode.library.names import BUNDLED_PACK
from tests.peft_folders import list_adapter, write_peft

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.serial,  # a browser, its page and the server beside two workers take longer than the page waits
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make providers` installs it where it can"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
PATIENCE = 120_000
"""Milliseconds that a busy machine may take for a step."""
expect.set_options(timeout=PATIENCE)
STORY = "Tell me a story about a fox and a lighthouse."
CODE = "Write a Python function that returns the larger of two numbers."
REFUSED = re.compile("the server responded with a status of (401|503)")
COPIES = """
    window.replies = [];
    const fetched = window.fetch;
    window.fetch = async (...request) => {
      const reply = await fetched(...request);
      if (String(request[0]).endsWith("completions")) window.replies.push(reply.clone().text());
      return reply;
    };
"""
"""Keeps what the server streams: the browser's protocol does not."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a pack with the adapter `odd`."""
    root = tmp_path_factory.mktemp("page")
    shutil.copytree(BUNDLED_PACK, root / "pack")
    list_adapter(root / "pack", "odd", write_peft(root / "odd", seed=1, size=0.5))
    with edgedecode.load(root / "pack", runtime="onnx", adapters=True) as pair, Running(pair) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as program:
        chromium = program.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, server: Running) -> Iterator[Callable[..., Any]]:
    """Opens the page in a browser of its own; fails if the page logs an error or asks another host for anything."""
    contexts, wrong = [], []

    def opened(*, at: Running = server, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if line.type == "error" else None)
        page.on("request", lambda each: wrong.append(each.url) if not local(each.url) else None)
        page.set_default_timeout(PATIENCE)
        page.add_init_script(COPIES)
        page.goto(f"http://127.0.0.1:{at.port}/")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not [each for each in wrong if not REFUSED.search(each)]


def local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:"))


def say(page: Any, text: str) -> None:
    """Send a message and wait for the end of its answer."""
    written(page, text).press("Enter")
    ended(page)


def written(page: Any, text: str) -> Any:
    """The message's field, with `text` in it: a busy page may put the focus elsewhere while it is typed."""
    expect(page.locator("dialog[open]")).to_have_count(0)  # text typed below an open dialog is lost
    message, send = page.get_by_label("Message", exact=True), page.locator(".composer button[aria-label=Send]")
    message.fill(text)
    while not send.is_enabled():
        message.fill(text)
    return message


def ended(page: Any) -> None:
    page.wait_for_selector(".messages[aria-busy=false] article.assistant .figures", state="attached")
    assert not page.locator("article.assistant .trouble").all_inner_texts()


def answers(page: Any) -> list[str]:
    return [each.strip() for each in page.locator("article.assistant .text").all_inner_texts()]


def lone(server: Running, text: str, **options: Any) -> str:
    with server.pair.session(SessionOptions(**options)) as session:
        return session.generate(text).text


def reports(page: Any) -> list[dict[str, Any]]:
    """Return what the server reported of the last answer's rounds."""
    lines = page.evaluate("window.replies.at(-1)").splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [each["edgedecode"] for each in events if "edgedecode" in each]


def figures(page: Any) -> dict[str, str]:
    """Open the details of the last answer; return its figures by name."""
    line = page.locator("article.assistant .figures").last
    if line.get_attribute("aria-expanded") == "false":
        line.click()
    page.locator(".details [data-figure=leased]").wait_for()  # they come last
    found = page.locator("[data-figure]").evaluate_all(
        "all => all.map(each => [each.dataset.figure, each.textContent])"
    )
    return dict(found)


def test_a_message_is_answered_with_the_models_text(opened: Any, server: Running) -> None:
    page = opened()
    say(page, STORY)
    assert answers(page) == [lone(server, STORY)]
    assert page.title() == f"{STORY} · edgedecode"
    say(page, "How many days are in a week?")
    assert len(answers(page)) == 2


def test_markdown_is_shown_with_highlighted_code_that_can_be_copied(opened: Any, server: Running) -> None:
    page = opened(permissions=["clipboard-read", "clipboard-write"])
    say(page, CODE)
    code = page.locator(".code code")
    assert code.inner_text().strip() == lone(server, CODE).split("```")[1].removeprefix("python").strip()
    assert page.locator(".code .hljs-keyword").first.inner_text() == "def"
    page.get_by_role("button", name="Copy", exact=True).last.click()
    page.locator(".copy-code").click()
    assert page.evaluate("navigator.clipboard.readText()") == code.inner_text().rstrip("\n")


HOSTILE = """<img src=x onerror="alert(1)"><script>alert(2)</script>
[a](javascript:alert(3)) [b](https://example.com/?q=1) ![c](https://example.com/c.png)
<iframe src="https://example.com"></iframe><a href="data:text/html,x" onclick="alert(4)">d</a>
<style>body { display: none }</style> <form action="https://example.com"><input></form>

```"><img src=y onerror=alert(5)>
</code></pre><script>alert(6)</script>
```
"""


STATS: dict[str, Any] = {
    "mode": "auto",
    "seed": 5,
    "rounds": 9,
    "proposed": 12,
    "accepted": 11,
    "prompt_tokens": 30,
    "verified_tokens": 20,
    "unverified_tokens": 0,
    "cached_tokens": 8,
    "time_to_first_token": 0.05,
    "plain_rounds": {"no speed-up expected": 6},
    "tokens_per_second": 1234.5,
    "plain_tokens_per_second": None,
    "time_seconds": {"draft": 0.01, "verify": 0.08, "sample": 0.01, "host": 0.0},
}


def answer_with(page: Any, text: str, *, thought: str = "", **stats: Any) -> None:
    """Have the page's next messages answered with this text, and the statistics STATS with these changed."""
    made = {"source": "target", "tokens": 20, "stats": STATS | stats}
    events = [
        {"choices": [{"delta": {"reasoning_content": thought}}]},
        {"choices": [{"delta": {"content": text}}], "edgedecode": made},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


def test_markdown_keeps_numbers_boxes_and_links(opened: Any) -> None:
    page = opened()
    answer_with(
        page, "# A\n\n1. one\n\n```py\nx\n```\n\n2. two\n\n- [x] done\n\nSee [site][1].\n\n[1]: https://example.com/a\n"
    )
    say(page, "Go on.")
    article = page.locator("article.assistant")
    assert article.locator("ol").evaluate_all("all => all.map(each => each.start)") == [1, 2]
    assert article.locator("input[type=checkbox]").is_checked()
    assert article.get_by_role("link", name="site").get_attribute("href") == "https://example.com/a"
    assert page.locator("h1").count() == 1


def test_a_message_sent_before_the_server_told_its_name_is_answered_under_it(opened: Any) -> None:
    page = opened()
    held: list[Any] = []
    passing: list[bool] = []
    page.route("**/v1/models", lambda route: route.continue_() if passing else held.append(route))
    page.reload()
    written(page, STORY).press("Enter")
    page.wait_for_selector(".messages[aria-busy=true]")
    passing.append(True)
    while held:
        held.pop().continue_()
    ended(page)
    figures(page)
    assert page.locator(".details dl").get_by_text("demo", exact=True).is_visible()


def test_an_answer_can_neither_run_code_nor_load_anything(opened: Any) -> None:
    page = opened()
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    answer_with(page, HOSTILE)
    say(page, HOSTILE)
    article = page.locator("article")
    assert article.locator("img, script, iframe, style, form, object, svg:not(.icon)").count() == 0
    links = article.locator("a").evaluate_all("all => all.map(each => [each.getAttribute('href'), each.rel])")
    assert {href for href, _ in links} == {None, "https://example.com/?q=1", "https://example.com/c.png"}
    assert all("noopener" in rel for _, rel in links)
    attributes = article.evaluate_all(
        "all => all.flatMap(one => [...one.querySelectorAll('*')].flatMap(each => each.getAttributeNames()))"
    )
    assert not [name for name in attributes if name.startswith("on")]


def test_an_answer_is_stopped_and_answered_again(opened: Any, server: Running) -> None:
    page = opened()
    page.route("**/v1/chat/completions", lambda _: None)  # never answered: there is time to press the button
    written(page, STORY).press("Enter")
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped").first.wait_for()
    page.unroute("**/v1/chat/completions")
    page.get_by_role("button", name="Regenerate").click()
    page.get_by_label("Version 2 of 2").wait_for()
    ended(page)
    assert answers(page) == [lone(server, STORY)]
    page.get_by_role("button", name="Earlier version").click()
    assert answers(page) != [lone(server, STORY)]


def test_an_edited_message_is_another_branch(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    first = answers(page)
    say(page, "And another one.")
    page.get_by_role("button", name="Edit", exact=True).first.click()
    page.get_by_label("Edited message").fill(CODE)
    page.get_by_role("button", name="Send").first.click()
    page.get_by_label("Version 2 of 2").wait_for()
    ended(page)
    assert len(answers(page)) == 1
    assert answers(page) != first
    page.get_by_role("button", name="Earlier version").click()
    assert answers(page)[:1] == first
    assert len(answers(page)) == 2


def test_modes_and_adapters_are_the_servers_models(opened: Any, server: Running) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    page.keyboard.press("Alt+c")  # the text as it was written, without markdown
    found = []
    for mode, adapter, name in (("plain", "", "demo@plain"), ("switch", "", "demo@switch"), ("", "odd", "demo:odd")):
        choose(page, Decoding=mode, Adapter=adapter)
        say(page, STORY)
        figures(page)
        assert page.locator(".details dl").get_by_text(name, exact=True).is_visible()
        found.append(page.locator(".coloured").evaluate("each => each.textContent"))
        page.get_by_role("button", name="New chat").first.click()
        page.get_by_text("Chat with demo").wait_for()
    assert found[0] == lone(server, STORY)
    assert found[2] == lone(server, STORY, adapter="odd") != found[0]


def choose(page: Any, **choices: str) -> None:
    """Choose values in the chat's settings, by label."""
    page.get_by_role("button", name="Chat settings").click()
    for label, value in choices.items():
        page.get_by_label(label, exact=True).select_option(value)
    page.get_by_role("button", name="Close", exact=True).click()


def test_the_details_show_the_apis_figures(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    assert page.locator(".details").count() == 0  # the chat is the page
    found = reports(page)
    stats = found[-1]["stats"]
    shown = figures(page)
    drafted = ("accepted", "proposed") if stats["proposed"] else ()
    assert {name: int(shown[name]) for name in ("rounds", *drafted)} == {n: stats[n] for n in ("rounds", *drafted)}
    assert int(shown["prompt"]) == stats["prompt_tokens"]
    assert shown["speed"] == f"{stats['tokens_per_second']:,.0f}"
    assert abs(int(shown["time"].replace(",", "")) - 1000 * sum(stats["time_seconds"].values())) <= 0.51
    by_kind = sum(int(value) for name, value in shown.items() if name.startswith("tokens-"))
    assert sum(each["tokens"] for each in found) == stats["verified_tokens"]
    assert page.locator(".strip i").count() == by_kind == (stats["verified_tokens"] if drafted else 0)
    page.locator(".figures").click()
    assert page.locator(".details").count() == 0


@pytest.mark.parametrize(
    ("stats", "line", "sentence"),
    [
        ({"plain_tokens_per_second": 493.8}, "2.50 times plain decoding", "11 of 12 drafted tokens were accepted."),
        ({"plain_tokens_per_second": 2469.0}, "", "No speed-up over plain decoding was measured."),
        ({}, "", "No speed-up over plain decoding was measured."),
        ({"proposed": 0, "accepted": 0}, "", "without drafts: no speed-up expected."),
        ({"proposed": 0, "accepted": 0, "mode": "plain"}, "", "9 passes of the model, without drafts."),
    ],
)
def test_a_speed_up_is_shown_where_it_is_one(stats: Any, line: str, sentence: str, opened: Any) -> None:
    page = opened()
    answer_with(page, "Yes.", **stats)
    say(page, "Is it?")
    shown = page.locator(".figures").inner_text().split(" · ")
    assert shown == ["20 tokens", "1,235 tokens/s", *([line] if line else [])]
    assert figures(page).get("speed-up") == (line.split(maxsplit=1)[0] if line else None)
    assert sentence in page.locator(".details p").first.inner_text()


def test_switching_tells_unverified_tokens(opened: Any) -> None:
    page = opened()
    page.get_by_text("Chat with demo").wait_for()
    choose(page, Decoding="switch")
    page.keyboard.press("Alt+c")
    say(page, STORY)
    stats = reports(page)[-1]["stats"]
    shown = figures(page)
    assert int(shown["unverified"]) == stats["unverified_tokens"] == int(shown["tokens-unverified"]) > 0
    assert int(shown["verified"]) == stats["verified_tokens"] == int(shown["tokens-target"])
    text = "".join(page.locator(".coloured .source").all_inner_texts())
    assert text == page.locator(".coloured").inner_text()
    unverified = page.locator(".coloured .unverified").evaluate_all("all => all.map(each => each.textContent).join('')")
    assert unverified


def test_memory_is_the_budgets(opened: Any, server: Running) -> None:
    page = opened()
    say(page, STORY)
    shown = figures(page)["leased"]
    used = server.pair.budget.used_nbytes
    assert re.fullmatch(r"\d+ MB", shown)
    assert abs(int(shown.split()[0]) - used / 1e6) < 100  # sessions come and go


def test_what_a_model_thought_is_folded(opened: Any) -> None:
    page = opened()
    answer_with(page, "Blue.", thought="The sky is <b>blue</b>.")
    say(page, "Name a colour.")
    assert answers(page)[-1] == "Blue."
    thought = page.locator(".thought")
    assert not thought.locator(".text").is_visible()
    thought.locator("summary").click()
    assert thought.locator(".text").inner_text() == "The sky is <b>blue</b>."
    page.reload()
    page.locator(".thought").wait_for()


@pytest.mark.parametrize(("used", "words"), [(50, "50 of 2,048 tokens"), (2000, "2,000 of 2,048 tokens")])
def test_the_use_of_the_context_is_told(used: int, words: str, opened: Any) -> None:
    page = opened()
    page.get_by_text("Enter sends").wait_for()
    answer_with(page, "Yes.", prompt_tokens=used - 20)
    say(page, "Is it?")
    meter = page.locator(".context")
    assert meter.locator("[data-figure=context]").inner_text() == words
    assert ("the oldest messages will be left out" in meter.inner_text()) == (used > 1900)
    assert meter.get_by_label("Context in use").evaluate("each => each.value / each.max") == used / 2048
