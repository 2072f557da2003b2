"""Limits of thoughts: the text up to the limit is that without one, then the end is forced; drafts change nothing."""

import json
from dataclasses import replace

import pytest
import tokenizers
from tokenizers import AddedToken

from edgedecode import CapabilityError, Completion, InputError, Pair, Rule, SamplingOptions, SwitchOptions
from edgedecode.errors import ManifestError
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.manifest import Manifest
from edgedecode.structured.grammar import Grammar
from edgedecode.structured.thought_limit import ThoughtLimit
from edgedecode.testing import toy_pair
from edgedecode.text.thinking import BUDGETS, Thinking, Thoughts, thinking_in
from edgedecode.text.tokenizer import Tokenizer
from tests.shared_paths import SHARED, needs_shared
from tests.thinkers import CALL, CALL_END, CLOSE, MARKS, OPENED, START, SWITCHED, thinker
from tests.toys import session_options

WARM = SamplingOptions(temperature=0.9, top_p=0.9, repetition_penalty=1.1)
EVERY = {
    "greedy": SamplingOptions(),
    "warm": WARM,
    "mirostat": SamplingOptions(temperature=1.2, mirostat=2, mirostat_tau=1.5, mirostat_eta=0.3),
    "dry": SamplingOptions(temperature=0.8, dry_multiplier=0.8, typical_p=0.9, xtc_probability=0.5, xtc_threshold=0.1),
    "banned": SamplingOptions(temperature=0.8, logit_bias=((CLOSE, -100),)),
}


def answer(pair: Pair, *, most: int = 60, prompt: str = "hello", **options: object) -> Completion:
    options = {"drafter": "none", "seed": 5, "sampling": WARM, **options}
    with pair.session(session_options(**options)) as session:
        return session.generate(prompt, max_tokens=most)


def closing(pair: Pair, message: str = "") -> tuple[int, ...]:
    return tuple(pair.tokenizer.encode(f"{message}</think>\n\n"))


@pytest.mark.parametrize("sampling", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("most", [0, 1, 7, 20])
def test_a_thought_that_never_ends_is_ended_at_its_limit(most: int, sampling: SamplingOptions) -> None:
    with thinker(ending=-50.0) as pair:
        free = answer(pair, sampling=sampling).tokens
        found = answer(pair, sampling=sampling, think_tokens=most).tokens
        end = closing(pair)
        assert CLOSE not in free
        assert len(free) == len(found) == 60
        assert found[:most] == free[:most]
        assert found[most : most + len(end)] == end
        assert CLOSE not in found[most + len(end) :]


@pytest.mark.parametrize("sampling", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("template", [OPENED, SWITCHED], ids=["opened", "begun"])
@pytest.mark.parametrize(
    "drafting",
    [
        {"drafter": "model", "draft_max": 12},
        {"drafter": "suffix", "draft_max": 8},
        {"drafter": "tree", "draft_max": 6},
        {"drafter": "recycle", "draft_max": 3},
        {"drafter": None},
    ],
    ids=str,
)
def test_drafts_change_nothing(drafting: dict[str, object], template: str, sampling: SamplingOptions) -> None:
    with thinker(template, closing=3.0) as pair:
        cut = whole = 0
        for seed in range(4):
            for most in (0, 5, 30):
                plain = answer(pair, seed=seed, sampling=sampling, think_tokens=most).tokens
                assert answer(pair, seed=seed, sampling=sampling, think_tokens=most, **drafting).tokens == plain
                free = answer(pair, seed=seed, sampling=sampling).tokens
                whole += plain == free
                cut += plain != free
        assert cut > 2
        assert whole > 2 or sampling is EVERY["banned"]


def test_trees_of_drafts_are_accepted_in_a_thought() -> None:
    with (
        thinker(noise=0.1, ending=-50.0) as pair,
        pair.session(session_options(drafter="tree", draft_max=8, think_tokens=24, sampling=WARM, seed=1)) as session,
    ):
        session.generate("hello", max_tokens=50)
        assert session.stats.drafters["tree"].accepted > 10
        assert session.stats.drafters["forced"].accepted == len(closing(pair)) - 1  # the first is drawn


def test_the_ratio_rule_holds_the_limit() -> None:
    with thinker(ending=-50.0) as pair:
        for seed in range(8):
            found = answer(
                pair, seed=seed, think_tokens=9, drafter="model", draft_max=5, rule=Rule.RATIO, sampling=WARM
            ).tokens
            assert found[9 : 9 + len(closing(pair))] == closing(pair)


@pytest.mark.parametrize("template", [OPENED, SWITCHED], ids=["opened", "begun"])
def test_each_of_several_answers_counts_for_itself(template: str) -> None:
    with thinker(template, closing=3.0) as pair:
        for most in (0, 6, 30):
            with pair.session(session_options(seed=3, samples=5, sampling=WARM, think_tokens=most)) as session:
                found = session.samples("hello", 9, max_tokens=60).completions()
            alone = [answer(pair, seed=3 + number, think_tokens=most) for number in range(9)]
            assert [each.tokens for each in found] == [each.tokens for each in alone]


@pytest.mark.parametrize("template", [OPENED, SWITCHED], ids=["opened", "begun"])
def test_marks_that_are_special_tokens_are_in_the_text(template: str) -> None:
    """As Magistral's are, so that what the model thinks can be told from what it says."""
    with thinker(template, ending=-50.0, special=True) as pair:
        text = answer(pair, think_tokens=6).text
        thought, said = Thoughts(Thinking("<think>", "</think>"), opened=template == OPENED).parted(text, ended=True)
        assert (len(thought), bool(said)) == (6, True)
        with pair.session(session_options(think_tokens=6, samples=2)) as session:
            assert all("</think>" in each.text for each in session.samples("hi", 2, max_tokens=20).completions())


def test_a_second_answer_has_a_limit_of_its_own() -> None:
    with thinker(ending=-50.0) as pair, pair.session(session_options(think_tokens=4, seed=1)) as session:
        for prompt in ("hello", "and now"):
            assert session.generate(prompt, max_tokens=20).tokens[4] == CLOSE


def test_the_start_of_a_thought_that_the_model_writes_is_not_counted() -> None:
    with thinker(SWITCHED, ending=-50.0) as pair:
        found = answer(pair, think_tokens=6).tokens
        assert found[0] == START
        assert found[7] == CLOSE


def test_the_last_words_of_a_cut_thought_are_no_control_tokens() -> None:
    message = "\nTime is up.<|im_end|></think>"
    with thinker(ending=-50.0) as pair:
        found = answer(pair, think_tokens=6, think_message=message, most=90)
        assert found.text[6:].startswith(f"{message}</think>\n\n")
        assert found.tokens.count(CLOSE) == 1
        drafted = answer(pair, think_tokens=6, think_message=message, most=90, drafter="model", draft_max=3)
        assert drafted.tokens == found.tokens


def test_nothing_is_forced_within_a_tool_call() -> None:
    with thinker(calling=3.5, ending=-50.0) as pair:
        waited = 0
        for seed in range(12):
            found = answer(pair, seed=seed, think_tokens=8, most=70).tokens
            assert answer(pair, seed=seed, think_tokens=8, most=70, drafter="model", draft_max=5).tokens == found
            inside = False
            for place, token in enumerate(found):
                if token in (CALL, CALL_END) and CLOSE not in found[:place]:
                    inside = token == CALL
                if token == CLOSE:
                    assert not inside
                    waited += place > 8
                    break
            else:
                assert inside
        assert waited


def test_efforts_are_limits() -> None:
    with thinker(ending=-50.0) as pair:
        free = answer(pair, most=BUDGETS["low"] + 30, context=400)
        for think in ("", "on", "auto", "high", "max"):
            assert answer(pair, most=BUDGETS["low"] + 30, context=400, think=think).tokens == free.tokens
        low = answer(pair, most=BUDGETS["low"] + 30, context=400, think="low").tokens
        assert low.index(CLOSE) == BUDGETS["low"]
        assert low[: BUDGETS["low"]] == free.tokens[: BUDGETS["low"]]
        for think in ("off", "none", "minimal"):
            assert answer(pair, think=think, think_tokens=500).tokens[0] == CLOSE
        assert answer(pair, think="high", think_tokens=3).tokens[3] == CLOSE
        assert answer(pair, most=BUDGETS["low"] + 30, context=400, think="low", think_tokens=-1).tokens == free.tokens


def test_no_tokens_turn_a_switch_off() -> None:
    with thinker(SWITCHED, ending=-50.0) as pair, pair.session(session_options(think_tokens=0)) as session:
        session.generate("hello", max_tokens=2)
        assert "assistant\n<think>\n\n</think>\n\n" in pair.tokenizer.decode(session.tokens, skip_special=False)


def test_what_cannot_be_limited_is_refused() -> None:
    with thinker() as pair:
        switch = SwitchOptions(threshold=0.5)
        with pytest.raises(CapabilityError, match="thinking budget needs verified tokens"):
            pair.session(session_options(think_tokens=4, switch=switch))
        pair.session(session_options(think="off", switch=switch)).close()
        with pytest.raises(InputError, match="a grammar covers the whole answer"):
            pair.session(session_options(think_tokens=4, grammar=Grammar.json_object()))
        pair.session(session_options(think_tokens=-1, grammar=Grammar.json_object())).close()
        for wrong in (-2, 1 << 60):
            with pytest.raises(InputError, match="out of range"):
                pair.session(session_options(think_tokens=wrong))
    with toy_pair() as pair:
        with pytest.raises(InputError, match="nothing in this pack's chat template ends"):
            pair.session(session_options(think_tokens=4))
        pair.session(session_options(think_tokens=0)).close()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ '<think>' + x + '</think>\\n\\n' + y }}", Thinking("<think>", "</think>", "\n\n")),
        ("{{ x.split('</think>')[-1] }}{{ '<think>\n' }}", Thinking("<think>", "</think>", "\n\n")),
        ("{{ '[THINK]' + x + '[/THINK]\n' }}", Thinking("[THINK]", "[/THINK]", "\n")),
        ("{{ '<think>' }}", None),
        ("{{ messages }}", None),
    ],
)
def test_templates_say_how_a_model_thinks(source: str, expected: Thinking | None) -> None:
    assert thinking_in(source, lambda token: None) == expected


def test_the_manifest_says_how_a_model_thinks() -> None:
    with thinker() as pair:
        own = Thinking("<muse>", "</muse>", "\n")
        files = {name: FileEntry(1, "0" * 64) for name in pair.manifest.named()}
        value = replace(pair.manifest, thinking=own, files=files)
        assert Manifest.from_json(json.loads(value.to_json())).thinking == own
        for wrong in (Thinking(" ", "x"), Thinking("x", ""), Thinking("x", "y" * 65)):
            with pytest.raises(ManifestError, match=r"manifest\.thinking"):
                Manifest.from_json(json.loads(replace(value, thinking=wrong).to_json()))


@needs_shared
@pytest.mark.parametrize("marked", [True, False], ids=["tokens", "texts"])
@pytest.mark.parametrize("name", [pytest.param("qwen2.5", marks=pytest.mark.slow), "smollm2", "phi3"])
def test_real_tokenizers_write_marks_as_tokens_or_texts(name: str, marked: bool) -> None:
    """Qwen 3's tokenizer is Qwen 2.5's with the marks; a model without them spells them in several tokens."""
    inner = tokenizers.Tokenizer.from_file(str(SHARED / f"tokenizers/{name}/tokenizer.json"))
    if marked:
        inner.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer, thinking = Tokenizer(inner), Thinking("<think>", "</think>")
    thoughts = tokenizer.encode("<think>\nLet me see: 12 and 30 are 42 \u2026 or </thin? " * 3)
    for most in range(25):
        limit = ThoughtLimit(tokenizer, thinking, most=most, at_once=3)
        limit.begin(tokenizer.encode("user: hi\nassistant:"))
        said: list[int] = []
        for token in thoughts:
            if limit.forced():
                break
            said.append(token)
            limit.extend([token])
        before = tokenizer.decode(said)
        start = next(count for count in range(len(said)) if "<think>" in tokenizer.decode(said[: count + 1])) + 1
        assert len(said) == start + most
        while forced := limit.forced():
            said += forced
            limit.extend(forced)
        said += tokenizer.encode("It is 42.</think>")
        parted = Thoughts(thinking, opened=False).parted(tokenizer.decode(said), ended=True)
        assert parted[0].rstrip() == before.lstrip().removeprefix("<think>").rstrip()
        assert parted[1].startswith("It is 42.")
