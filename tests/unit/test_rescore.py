"""Re-scoring: greedy text of the same model agrees everywhere; a changed token is found with its logit gap."""

import pytest

from edgedecode.decoding.loop import PREFILL_CHUNK
from edgedecode.engines.kernel_noise import rescore
from tests.toys import run, toy_model

VOCABULARY = 30


def test_rescore_of_a_models_own_text_agrees_everywhere() -> None:
    prompt = [1, 2, 3]
    tokens = prompt + run(toy_model(VOCABULARY), prompt, max_tokens=20).tokens
    model = toy_model(VOCABULARY)
    score = rescore(model, tokens, prompt_tokens=3)
    assert (score.positions, score.hits, score.gaps, score.largest_gap) == (20, 20, (), 0.0)
    assert score.largest_gap <= 0.0
    assert model.passes[1:] == [1] * 20  # the one-row kernel, after the prompt


def test_rescore_finds_a_changed_token_with_its_gap() -> None:
    prompt = [1, 2, 3]
    tokens = prompt + run(toy_model(VOCABULARY), prompt, max_tokens=20).tokens
    tokens[-1] = (tokens[-1] + 1) % VOCABULARY
    row = toy_model(VOCABULARY).logits_after(tokens[:-1])[:VOCABULARY]
    score = rescore(toy_model(VOCABULARY), tokens, prompt_tokens=3)
    assert score.hits == 19
    assert score.largest_gap == pytest.approx(float(row.max() - row[tokens[-1]]))


def test_rescore_reads_a_long_prompt_in_chunks() -> None:
    prompt = [index % VOCABULARY for index in range(PREFILL_CHUNK + 40)]
    tokens = prompt + run(toy_model(VOCABULARY, context=1000), prompt, max_tokens=4).tokens
    model = toy_model(VOCABULARY, context=1000)
    assert rescore(model, tokens, prompt_tokens=len(prompt)).hits == 4
    assert model.passes == [PREFILL_CHUNK, 39, 1, 1, 1, 1]
