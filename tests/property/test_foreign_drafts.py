"""Drafts of models with another tokenizer are verified like any other: the text is that of plain decoding."""

import random
from collections.abc import Sequence

import pytest

from edgedecode.drafters.foreign_text import ForeignText
from edgedecode.drafters.model_drafter import ModelSource
from edgedecode.drafters.text_drafter import TextDrafter, TextModel
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.text.tokenizer import Tokenizer
from tests.toys import GREEDY, draft_setting, run
from tests.writing_models import STORY, WritingModel, random_tokenizer

PAIRS = 40
SAMPLED = SamplingOptions(temperature=0.7, repetition_penalty=1.1)


def drafter(
    target: Tokenizer, draft: Tokenizer, *, seed: int, mistakes: float, capacity: int = 512, **setting: object
) -> TextDrafter:
    inner = WritingModel(draft, seed=seed, mistakes=mistakes)
    model = TextModel(inner, tokenizer=draft, target=target, closed=inner.close)
    made = ModelSource().open(draft_setting(target.size, model=model, capacity=capacity, **setting))  # type: ignore[arg-type]
    assert isinstance(made, TextDrafter)
    return made


@pytest.mark.parametrize("seed", range(PAIRS))
def test_text_is_that_of_plain_decoding(seed: int) -> None:
    chance = random.Random(seed)
    target, draft = random_tokenizer(chance), random_tokenizer(chance)
    model = WritingModel(target, seed=seed, mistakes=0.04)
    start = chance.randrange(len(STORY) - 60)
    prompt = [*target.encode("<|end|>"), *target.encode(target.without_controls(STORY[start : start + 40]))]
    ends = frozenset(target.encode("<|end|>"))
    accepted = 0
    for sampling in (GREEDY, SAMPLED):
        plain = run(model, prompt, max_tokens=150, sampling=sampling, seed=seed, ends=ends)
        for length in (1, 4, 16):
            text = drafter(target, draft, seed=seed + 1, mistakes=0.04, sampling=sampling, ends=ends)
            drafted = run(
                model, prompt, max_tokens=150, sampling=sampling, seed=seed, ends=ends, drafter=text, draft_max=length
            )
            assert drafted.tokens == plain.tokens
            accepted += drafted.stats.accepted
            text.close()
    assert accepted > 60


def test_drafts_are_mostly_right_where_both_models_write_the_same() -> None:
    proposed = accepted = 0
    for seed in range(PAIRS):
        chance = random.Random(1000 + seed)
        target, draft = random_tokenizer(chance), random_tokenizer(chance)
        model = WritingModel(target, seed=seed, mistakes=0.0)
        prompt = target.encode(target.without_controls(STORY[:50]))
        text = drafter(target, draft, seed=seed, mistakes=0.0)
        stats = run(model, prompt, max_tokens=120, drafter=text, draft_max=8).stats
        proposed, accepted = proposed + stats.proposed, accepted + stats.accepted
    assert accepted > 0.9 * proposed > 0.9 * 60 * PAIRS


def test_a_context_of_more_tokens_than_the_drafts_state_is_a_window() -> None:
    chance = random.Random(5)
    target, draft = random_tokenizer(chance), random_tokenizer(chance)
    model = WritingModel(target, seed=5, mistakes=0.0)
    prompt = target.encode(target.without_controls(STORY[:20]))
    plain = run(model, prompt, max_tokens=200)
    text = drafter(target, draft, seed=5, mistakes=0.0, capacity=64)
    drafted = run(model, prompt, max_tokens=200, drafter=text, draft_max=4)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 100
    assert text.unread([*prompt, *plain.tokens]) <= 64


@pytest.mark.parametrize("seed", range(PAIRS))
def test_the_drafts_tokens_are_those_of_the_text(seed: int) -> None:
    """Whatever was read in whatever pieces, also broken characters and control tokens."""
    chance = random.Random(seed)
    target, draft = random_tokenizer(chance), random_tokenizer(chance)
    ids = target.encode(STORY[chance.randrange(100) :])  # with control tokens
    broken = [chance.randrange(target.size) if chance.random() < 0.02 else id for id in ids]
    for tokens, whole in ((ids, True), (broken, False)):
        text = ForeignText(target, draft)
        text.begin([])
        length = 0
        before: list[int] = []
        while length < len(tokens):
            length = min(len(tokens), length + chance.choice((1, 1, 1, 2, 5, 60)))
            own = text.tokens(tokens[:length])
            assert own[: text.same] == before[: text.same]
            before = own
            held = text.held
            if whole:
                assert _shown(draft, own) + held.replace(b" ", b"") == _shown(target, tokens[:length])
        again = ForeignText(target, draft)
        again.begin([])
        assert _shown(draft, again.tokens(tokens)) == _shown(draft, text.tokens(tokens))


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """Return the bytes of a text without control tokens, and without the space marks that a text begins with."""
    return b"".join(map(tokenizer.token_bytes, ids)).replace(b" ", b"")


def test_a_draft_spells_no_control_token() -> None:
    for seed in range(PAIRS):
        chance = random.Random(seed)
        target, draft = random_tokenizer(chance), random_tokenizer(chance)
        text = ForeignText(target, draft)
        text.begin([])
        own = text.tokens(target.encode(target.without_controls("say <|end|> or <s>")))
        assert not draft.special_ids & set(own)
        found = text.proposed(b" and <|end|> </s> or <s> here")
        assert found
        assert not target.special_ids & set(found)
        context = target.encode("one<|end|>two")
        assert set(text.target.tokenizer.encode("<|end|>")) <= set(context)
        text.begin(context)
        assert set(draft.encode("<|end|>")) <= set(text.tokens(context))
