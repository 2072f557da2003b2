"""The web page in a real browser: chat, stop, versions, modes, adapters, figures, keyboard, a phone, accessibility."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import KEY, Running

# isort: split
pytest.importorskip("playwright", reason="the test extra is not installed")
pytest.importorskip("axe_playwright_python", reason="the test extra is not installed")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import edgedecode
from edgedecode import SessionOptions
from edgedecode.apps.serve.guards import Limits
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
STORY = "Tell me a story about a fox and a lighthouse."
CODE = "Write a Python function that returns the larger of two numbers."
SERIOUS = ("serious", "critical")
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
SLOW_SUBMITS = """
    addEventListener("submit", () => {
      const end = performance.now() + 700;
      while (performance.now() < end);
    });
"""
"""A busy machine, where a second click is handled long after the message was sent."""


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
        page.set_default_timeout(30_000)
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
    page.wait_for_function("!document.querySelector('dialog[open]')")  # text typed below an open dialog is lost
    message, send = page.get_by_label("Message", exact=True), page.get_by_role("button", name="Send")
    message.fill(text)
    while not send.is_enabled():
        message.fill(text)
    message.press("Enter")
    ended(page)


def ended(page: Any) -> None:
    page.wait_for_selector(".messages[aria-busy=false] article.assistant .actions small", state="attached")
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


def answer_with(page: Any, text: str) -> None:
    """Have the page's next messages answered with this text."""
    events = [{"choices": [{"delta": {"content": text}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
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
    page.route("**/props", lambda route: held.append(route))  # noqa: PLW0108  (playwright takes no built-in methods)
    page.reload()
    page.get_by_label("Message", exact=True).fill(STORY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".messages[aria-busy=true]")
    while held:
        held.pop().continue_()
        page.wait_for_timeout(50)
    ended(page)
    assert page.locator("article.assistant small").inner_text().split(" · ")[2] == "demo"


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
    page.get_by_label("Message", exact=True).fill(STORY)
    page.keyboard.press("Enter")
    page.wait_for_timeout(500)  # a double click on Send stops nothing
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
        page.get_by_label("Mode", exact=True).select_option(mode)
        page.get_by_label("Adapter").select_option(adapter)
        page.get_by_role("button", name="New chat").first.click()
        say(page, STORY)
        assert page.locator("article.assistant small").inner_text().split(" · ")[2] == name
        found.append(page.locator(".coloured").evaluate("each => each.textContent"))
    assert found[0] == lone(server, STORY)
    assert found[2] == lone(server, STORY, adapter="odd") != found[0]


def test_the_panel_shows_the_apis_figures(opened: Any) -> None:
    page = opened()
    say(page, STORY)
    found = reports(page)
    stats = found[-1]["stats"]
    shown = figures(page)
    assert (
        int(shown["accepted"])
        == stats["accepted"]
        == sum(each["round"]["accepted"] for each in found if "round" in each)
    )
    assert int(shown["proposed"]) == stats["proposed"]
    assert int(shown["rounds"]) == stats["rounds"]
    assert int(shown["prompt"]) == stats["prompt_tokens"]
    assert shown["speed"] == f"{stats['tokens_per_second']:.0f}"
    assert float(shown["acceptance-length"]) == round(stats["acceptance_length"], 2)
    assert abs(float(shown["time"]) - 1000 * sum(stats["time_seconds"].values())) <= 0.51
    by_kind = sum(int(value) for name, value in shown.items() if name.startswith("tokens-"))
    assert by_kind == sum(each["tokens"] for each in found) == stats["verified_tokens"]
    assert page.locator(".rounds g").count() == min(64, stats["rounds"])


def test_switching_shows_unverified_tokens_and_uncertainty(opened: Any) -> None:
    page = opened()
    page.get_by_label("Mode", exact=True).select_option("switch")
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
    shown = page.locator("[data-figure=leased]")
    shown.wait_for()
    limit = server.pair.budget.limit_nbytes
    assert limit is not None
    assert f"of {limit / 1e9:.1f} GB" in page.locator("#panel").inner_text()
    assert re.fullmatch(r"\d+\.\d MB", shown.inner_text())


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
    page.route("**/v1/chat/completions", lambda _: None)
    page.get_by_label("Message", exact=True).fill("And now?")
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
    page.get_by_label("Message", exact=True).fill(STORY)
    page.keyboard.press("Enter")
    page.locator("article .trouble").get_by_text("Busy").wait_for()
    assert page.evaluate("document.activeElement.id") == "message"
