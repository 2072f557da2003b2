"""Log probabilities with the bundled pack: those of a teacher-forced pass, and the same with any drafts."""

from typing import Any

import numpy as np
import pytest

from edgedecode import Completion, Pair, Rule, SamplingOptions
from edgedecode.engines.text_scores import ScoredText, Scores, score_rows
from edgedecode.structured.grammar import Grammar, GrammarKind
from tests.toys import session_options

pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
WARM = SamplingOptions(temperature=0.8, top_p=0.95, repetition_penalty=1.1)
NOISE = 1e-3
"""In nats. An engine's kernels round a row differently by the width of its pass; ours do not."""
WAYS: dict[str, dict[str, Any]] = {
    "scheduler": {},
    **{f"model {length}": {"drafter": "model", "draft_max": length} for length in (1, 2, 4, 8)},
    "suffix 4": {"drafter": "suffix", "draft_max": 4},
    "recycle 8": {"drafter": "recycle", "draft_max": 8},
    "tree 8": {"drafter": "tree", "draft_max": 8},
}


def answer(pair: Pair, prompt: str, **options: Any) -> tuple[Completion, list[int]]:
    """Return an answer and the tokens before it."""
    with pair.session(session_options(seed=5, **options)) as session:
        reply = session.generate(prompt, max_tokens=48, top_logprobs=4)
        tokens = list(session.tokens)
        assert tuple(tokens[-len(reply.tokens) :]) == reply.tokens
        return reply, tokens[: -len(reply.tokens)]


def assert_scored(pair: Pair, reply: Completion, prompt: list[int]) -> None:
    """Compare with the model's own scores of the text, computed in passes of 64 rows."""
    scores = Scores.joined(score_rows(pair.target, ScoredText((*prompt, *reply.tokens), len(prompt))))
    assert [each.token for each in reply.logprobs] == list(reply.tokens)
    np.testing.assert_allclose([-each.logprob for each in reply.logprobs], scores.losses, atol=NOISE)
    likeliest = [each.top[0][0] for each in reply.logprobs]
    clear = [each.top[0][1] - each.top[1][1] > NOISE for each in reply.logprobs]
    assert [id for id, sure in zip(likeliest, clear, strict=True) if sure] == scores.leading[clear].tolist()
    for each in reply.logprobs:
        values = [value for _, value in each.top]
        assert values == sorted(values, reverse=True)
        assert np.exp(values).sum() <= 1 + 1e-6


@pytest.mark.parametrize("sampling", [SamplingOptions(), WARM], ids=["greedy", "warm"])
def test_log_probabilities_are_those_of_teacher_forcing(
    bundled_pair: Pair, prompts: list[str], sampling: SamplingOptions
) -> None:
    for prompt in prompts[:6]:
        assert_scored(bundled_pair, *answer(bundled_pair, prompt, sampling=sampling, drafter="none"))


@pytest.mark.parametrize("way", WAYS)
def test_drafts_do_not_change_log_probabilities(bundled_pair: Pair, prompts: list[str], way: str) -> None:
    accepted = 0
    for prompt in prompts[:4]:
        for sampling in (SamplingOptions(), WARM):
            plain, _ = answer(bundled_pair, prompt, sampling=sampling, drafter="none")
            reply, _ = answer(bundled_pair, prompt, sampling=sampling, **WAYS[way])
            accepted += reply.stats.accepted
            same = next(
                (place for place, pair in enumerate(zip(plain.tokens, reply.tokens, strict=False)) if len({*pair}) > 1),
                min(len(plain.tokens), len(reply.tokens)),
            )  # an engine's kernels may swap nearly equal tokens
            found, wanted = ([each.logprob for each in one.logprobs[:same]] for one in (reply, plain))
            np.testing.assert_allclose(found, wanted, atol=NOISE)
    assert accepted > 0 or way == "scheduler"  # on a busy machine it may draft nothing


def test_log_probabilities_of_the_ratio_rule_are_those_of_teacher_forcing(
    bundled_pair: Pair, prompts: list[str]
) -> None:
    for prompt in prompts[:3]:
        reply, before = answer(bundled_pair, prompt, sampling=WARM, rule=Rule.RATIO, drafter="model", draft_max=4)
        assert_scored(bundled_pair, reply, before)
        assert reply.stats.accepted > 0


def test_log_probabilities_are_those_without_the_grammar(bundled_pair: Pair, prompts: list[str]) -> None:
    pytest.importorskip("llguidance", reason="the structured extra is not installed")
    grammar = Grammar(GrammarKind.REGEX, r"The answer is [0-9]{3}, or rather [0-9]{2}\.")
    reply, before = answer(bundled_pair, prompts[0], grammar=grammar)
    assert reply.stats.drafters["forced"].accepted > 0
    assert_scored(bundled_pair, reply, before)
    assert min(each.logprob for each in reply.logprobs) < -3  # tokens that the model did not want
