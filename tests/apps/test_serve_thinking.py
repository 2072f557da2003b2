"""`serve` and `generate`: arguments of the chat template, and thinking on and off."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import CHAT, RESPONSES, Running, body
from tests.conftest import Refusal, Told

# isort: split
import edgedecode
from edgedecode import Pair, SessionDetails, SessionOptions
from edgedecode.apps.serve.requests.thinking import BUDGETS
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.text.thinking import Thinking, Thoughts
from tests.apps.packs import sign

TAIL = (
    "{% if enable_thinking is defined and not enable_thinking %}{{ 'one two three' }}{% endif %}"
    "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}"
)
"""Written after the bundled template: the prompt is longer where thinking is off, and by earlier thoughts."""


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundled pack with a template that has a switch."""
    return with_template(tmp_path_factory.mktemp("packs") / "thinker", TAIL)


def with_template(pack: Path, tail: str) -> Path:
    """Make a copy of the bundled pack whose template ends with `tail`."""
    shutil.copytree(BUNDLED_PACK, pack)
    path = pack / "chat_template.jinja"
    path.write_text(path.read_text(encoding="utf-8") + tail, encoding="utf-8")
    sign(pack, path)
    return pack


@pytest.fixture(scope="module")
def server(thinker: Path) -> Iterator[Running]:
    with edgedecode.load(thinker, runtime="onnx") as pair, Running(pair) as running:
        yield running


def test_what_goes_on_is_no_thought(tmp_path: Path) -> None:
    pack = with_template(tmp_path / "pack", "{% if add_generation_prompt %}<think>\n{% endif %}")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    with edgedecode.load(pack, runtime="onnx") as pair, Running(pair) as running:
        prompt = running.answer({"messages": messages}, "/apply-template")["prompt"]
        assert prompt.endswith("<think>\n\n</think>\n\nWell")
        given = {"messages": messages, "continue_final_message": True, "max_tokens": 4}
        assert "reasoning_content" not in running.answer(given)["choices"][0]["message"]


def prompt_tokens(server: Running, path: str = CHAT, **fields: Any) -> int:
    usage = server.answer(body(path, "Hi", 2) | fields, path)["usage"]
    return int(usage.get("prompt_tokens", usage.get("input_tokens")))


def test_requests_switch_thinking(server: Running) -> None:
    usual = prompt_tokens(server)
    off = prompt_tokens(server, chat_template_kwargs={"enable_thinking": False})
    assert off > usual
    for effort, expected in (("none", off), ("minimal", off), ("low", usual), ("high", usual)):
        assert prompt_tokens(server, reasoning_effort=effort) == expected
        assert prompt_tokens(server, RESPONSES, reasoning={"effort": effort}) == expected
    assert prompt_tokens(server, chat_template_kwargs={"enable_thinking": True}) == usual


def test_an_earlier_thought_reaches_the_template(server: Running) -> None:
    def count(**fields: str) -> int:
        said = {"role": "assistant", "content": "Hello", **fields}
        user = {"role": "user", "content": "Hi"}
        return prompt_tokens(server, messages=[user, said, user])

    assert count() == count(reasoning_content="") < count(reasoning_content="one two three")


def test_a_grammar_leaves_no_place_to_think_in(server: Running) -> None:
    form = {"type": "json_object"}
    off = prompt_tokens(server, chat_template_kwargs={"enable_thinking": False})
    assert prompt_tokens(server, response_format=form, reasoning_effort="high") == off


def test_a_template_without_a_switch(pair: Pair) -> None:
    with Running(pair) as running:
        usual = prompt_tokens(running)
        assert prompt_tokens(running, reasoning_effort="none") == usual
        assert not running.note
        assert prompt_tokens(running, reasoning_effort="high") == usual
        assert "no switch for thinking" in running.note
        for name in ("enable_thinking", "thinking"):
            assert prompt_tokens(running, chat_template_kwargs={name: False}) == usual
            assert f"chat_template_kwargs.{name} was not followed" in running.note
        prompt_tokens(running, RESPONSES, reasoning={"effort": "high", "summary": "auto"})
        assert "no switch for thinking" in running.note


def test_a_template_that_always_thinks_does_not_stop(tmp_path: Path) -> None:
    pack = with_template(tmp_path / "always", "{{ '<think>' }}")
    with edgedecode.load(pack, runtime="onnx") as pair, Running(pair) as running:
        prompt_tokens(running, reasoning_effort="none")
        assert "no switch for thinking" in running.note


def test_the_command_line_switches_thinking(thinker: Path, told: Told, refusal: Refusal) -> None:
    def tokens(*words: str) -> int:
        value = told("generate", str(thinker), "Hi", "-n", "2", *words)
        return int(value["stats"]["prompt_tokens"] if "stats" in value else value["prompt_tokens"])

    off = tokens("--think", "off")
    assert off > tokens() == tokens("--think", "on") == tokens("--template-arg", "enable_thinking=true")
    assert tokens("--template-arg", "enable_thinking=false") == off
    assert "does not read 'colour'" in refusal("generate", str(thinker), "Hi", "--template-arg", "colour=1")


def test_the_command_line_limits_thoughts(muser: Running, told: Told, refusal: Refusal) -> None:
    def text(*words: str) -> str:
        return str(told("generate", str(muser.pair.root), "Hi", "-n", "40", *words)["text"])

    free = text()
    for flags in (["--think-tokens", "4"], ["--reasoning-budget", "4"]):
        cut, mark, answer = text(*flags).partition("</think>\n\n")
        assert mark
        assert answer
        assert free.startswith(cut)
    assert text("--think-tokens", "4", "--reasoning-budget-message", " So:").startswith(f"{cut} So:</think>\n\n")
    assert text("--think", "off") == text("--think-tokens", "0") != free
    assert text("--think-tokens", "-1") == text("--think", "auto") == text("--think", "on") == free
    needs = refusal("generate", str(BUNDLED_PACK), "Hi", "--think-tokens", "4")
    assert "nothing in this pack's chat template ends a thought" in needs
    form = ("--regex", "x+")
    assert "a grammar covers the whole answer" in refusal(
        "generate", str(muser.pair.root), "Hi", "--think-tokens", "4", *form
    )


@pytest.mark.parametrize(
    ("opened", "answer", "thought", "text"),
    [
        (False, "<think>\nlet me see\n</think>\n\nParis.", "\nlet me see\n", "Paris."),
        (False, "\n<think>a</think>b", "a", "b"),
        (True, "let me see\n</think>\nParis.", "let me see\n", "Paris."),
        (True, "never ends </thin", "never ends </thin", ""),
        (False, "Paris.", "", "Paris."),
        (False, " <thin ice", "", " <thin ice"),
        (False, "<thi", "", "<thi"),
        (False, "a <think>b</think>", "", "a <think>b</think>"),
        (False, "<think></think>", "", ""),
        (True, "a < b </ c </think> <think>d</think>", "a < b </ c ", "<think>d</think>"),
    ],
)
def test_thoughts_are_parted_wherever_a_piece_ends(opened: bool, answer: str, thought: str, text: str) -> None:
    for size in range(1, len(answer) + 1):
        thoughts, found = Thoughts(Thinking("<think>", "</think>"), opened=opened), ["", ""]
        for start in range(0, len(answer), size):
            pieces = thoughts.parted(answer[start : start + size], ended=start + size >= len(answer))
            found = [one + other for one, other in zip(found, pieces, strict=True)]
        assert found == [thought, text], size


@pytest.fixture(scope="module")
def muser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve the bundled pack with a template that opens a thought, which this model never closes."""
    pack = tmp_path_factory.mktemp("packs") / "muser"
    with (
        edgedecode.load(with_template(pack, "{{ '<think>\n' }}{# </think> #}"), runtime="onnx") as pair,
        Running(pair) as running,
    ):
        yield running


def test_a_thought_is_no_content(muser: Running) -> None:
    given = body(CHAT, "Hi", 12)
    reply = muser.client.chat.completions.create(**given)
    message, details = reply.choices[0].message, reply.usage.completion_tokens_details
    assert message.content == ""
    assert details.reasoning_tokens == reply.usage.completion_tokens > 5
    thought = message.reasoning_content
    assert len(thought) > 10
    chunks = [*muser.client.chat.completions.create(stream=True, **given)]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == thought
    assert "".join(delta.content or "" for delta in deltas) == ""


def test_a_thought_is_an_item_of_responses(muser: Running) -> None:
    given = body(RESPONSES, "Hi", 12)
    whole = muser.client.responses.create(**given)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.usage.output_tokens_details.reasoning_tokens == whole.usage.output_tokens > 5
    thought = whole.output[0].content[0].text
    events = [*muser.client.responses.create(stream=True, **given)]
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == thought
    last = events[-1].response
    assert [item.type for item in last.output] == ["reasoning", "message"]
    places = {event.item.type: event.output_index for event in events if event.type == "response.output_item.done"}
    assert places == {"reasoning": 0, "message": 1}


FIELDS: list[dict[str, Any]] = [
    *({name: 6} for name in BUDGETS),
    {"thinking": {"type": "enabled", "budget_tokens": 6}},
    {"reasoning": {"budgetTokens": 6}},
    {"reasoning_budget": 6, "thinking": {"type": "adaptive", "budget_tokens": 6}, "reasoning_effort": "high"},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_budget_has_many_names(muser: Running, fields: dict[str, Any]) -> None:
    message = muser.answer(body(CHAT, "Hi", 40) | fields)
    (choice,), usage = message["choices"], message["usage"]
    assert choice["message"]["content"]
    assert muser.pair.tokenizer.encode(choice["message"]["reasoning_content"])[:4]
    free = muser.answer(body(CHAT, "Hi", 40))["choices"][0]["message"]["reasoning_content"]
    assert free.startswith(choice["message"]["reasoning_content"])
    marks = len(muser.pair.tokenizer.encode("</think>\n\n"))
    assert 6 < usage["completion_tokens_details"]["reasoning_tokens"] <= 6 + marks


def test_every_api_parts_what_is_cut(muser: Running) -> None:
    user = {"messages": [{"role": "user", "content": "Hi"}], "model": "demo"}
    free = muser.answer(body(CHAT, "Hi", 40))["choices"][0]["message"]["reasoning_content"]
    thinking = {"type": "enabled", "budget_tokens": 6}
    blocks = muser.answer({**user, "max_tokens": 40, "temperature": 0, "thinking": thinking}, "/v1/messages")["content"]
    assert [each["type"] for each in blocks] == ["thinking", "text"]
    reply = muser.answer(body(RESPONSES, "Hi", 40) | {"reasoning": {"budgetTokens": 6}}, RESPONSES)
    options = {"options": {"num_predict": 40, "temperature": 0}, "stream": False, "think": 6}
    said = muser.answer({**user, **options}, "/api/chat")["message"]
    thoughts = {blocks[0]["thinking"], reply["output"][0]["content"][0]["text"], said["thinking"]}
    assert len(thoughts) == 1
    assert free.startswith(thoughts.pop())
    assert blocks[1]["text"] == said["content"] == reply["output"][1]["content"][0]["text"] != ""
    cut = muser.answer(body(CHAT, "Hi", 60) | {"reasoning_budget": 3, "reasoning_budget_message": " Enough."})
    assert cut["choices"][0]["message"]["reasoning_content"].endswith(" Enough.")


@pytest.mark.parametrize(
    "off", [{"reasoning_budget": 0}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}]
)
def test_no_budget_is_no_thought(muser: Running, off: dict[str, Any]) -> None:
    reply = muser.answer(body(CHAT, "Hi", 12) | off)["choices"][0]["message"]
    assert reply["content"]
    assert not reply.get("reasoning_content")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reasoning_budget": -2}, "reasoning_budget"),
        ({"reasoning_budget": "6"}, "reasoning_budget"),
        ({"thinking_budget_tokens": True}, "thinking_budget_tokens"),
        ({"budgetTokens": 1.5}, "budgetTokens"),
        ({"reasoning_budget_message": 7}, "reasoning_budget_message"),
        ({"reasoning_budget_message": "x" * 1001}, "reasoning_budget_message"),
        ({"thinking": {"budget_tokens": 6}}, "type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -7}}, "thinking.budget_tokens"),
        ({"reasoning": {"budgetTokens": []}}, "reasoning.budgetTokens"),
        ({"reasoning_budget": 5, "budgetTokens": 6}, "reasoning_budget and budgetTokens differ"),
    ],
)
def test_wrong_budgets_are_refused(muser: Running, fields: dict[str, Any], said: str) -> None:
    muser.refuses(body(CHAT, "Hi", 4) | fields, said, CHAT, status=400)


def test_budgets_that_cannot_be_held_are_noted(muser: Running, pair: Pair) -> None:
    form = {"type": "json_object"}
    muser.answer(body(CHAT, "Hi", 4) | {"reasoning_budget": 5, "response_format": form})
    assert "thinking budget was not followed: a form or tools" in muser.note
    with Running(pair) as running:
        running.answer(body(CHAT, "Hi", 4) | {"reasoning_budget": 5})
        assert "thinking budget was not followed: nothing" in running.note
        running.answer(body(CHAT, "Hi", 4) | {"reasoning_budget": 0})
        assert not running.note


def test_the_servers_budget_holds_where_a_request_has_none(muser: Running) -> None:
    details = SessionDetails(think_tokens=5)
    with Running(muser.pair, options=SessionOptions(details=details)) as running:

        def thought(**fields: Any) -> str:
            return str(running.answer(body(CHAT, "Hi", 40) | fields)["choices"][0]["message"]["reasoning_content"])

        whole = thought(reasoning_budget=-1)
        assert len(thought(reasoning_budget=3)) < len(thought()) < len(whole)
        assert whole.startswith(thought())
