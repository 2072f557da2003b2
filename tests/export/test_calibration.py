"""The importance of columns: its source, and its gain on trained weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.engines.text_scores import ScoredText
from edgedecode.export.base_model import find_weights, open_source
from edgedecode.export.checks.reference import Reference
from edgedecode.export.graph.checkpoint import Checkpoint
from edgedecode.export.graph.network import open_network
from edgedecode.export.graph.recipe import EMBEDDING, HEAD, Recipe
from edgedecode.export.recipes.calibration import find_importance, sample_texts
from edgedecode.export.recipes.scored_texts import read_texts
from edgedecode.export.stages import Stages
from edgedecode.testing import TableModel, toy_tables
from edgedecode.text.chat_template import ChatTemplate

from .conftest import recipe

pytestmark = pytest.mark.export

PROMPTS = Path(__file__).parents[2] / "apps" / "prompts.jsonl"


@contextmanager
def reference_of(folder: Path, stored: Recipe) -> Iterator[Reference]:
    source = open_source(str(folder))
    checkpoint = Checkpoint(find_weights(source, Stages()))
    network = open_network(folder, checkpoint, architecture=source.shape.architecture)
    yield Reference(network, stored.of(source.shape), release=checkpoint.release)
    checkpoint.close()


def test_find_importance_is_the_mean_square_of_the_inputs(llama: Path) -> None:
    texts = [list(range(10, 40)), list(range(50, 55))]
    with reference_of(llama, recipe(4)) as reference:
        found = find_importance(reference, texts, tied=False)
    network = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    inputs: list[FloatArray] = []
    down = network.model.layers[1].mlp.down_proj
    down.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0].numpy()))
    with torch.inference_mode():
        hidden = [network.model(torch.tensor([text])).last_hidden_state[0].numpy() for text in texts]
    for name, values in (("model.layers.1.mlp.down_proj", inputs), (HEAD, hidden)):
        assert found[name] == pytest.approx((np.concatenate(values) ** 2).mean(axis=0), rel=1e-4)
    assert set(found) == {
        HEAD,
        *(f"model.layers.{layer}.{part}" for layer in range(2) for part in ("attn.qkv_proj", "attn.o_proj")),
        *(f"model.layers.{layer}.{part}" for layer in range(2) for part in ("mlp.gate_up_proj", "mlp.down_proj")),
    }


def test_find_importance_cuts_long_texts_and_batches_short_ones(llama: Path) -> None:
    done: list[int] = []
    with reference_of(llama, recipe(4)) as reference:
        texts = [[7] * 1500, *[[9] * 100] * 3]
        found = find_importance(reference, texts, tied=True, progress=done.append)
    assert sum(done) == 1800
    assert max(done) <= 1024
    assert np.array_equal(found[HEAD], found[EMBEDDING])


def test_sample_texts_stops_at_the_token_count() -> None:
    model = TableModel(toy_tables(32, seed=1))
    texts = sample_texts(model, [(3, 4), (5,)], ends={7}, tokens=600)
    replies = [text[len(prompt) :] for text, prompt in zip(texts, [(3, 4), (5,)] * len(texts), strict=False)]
    assert sum(map(len, replies)) == 600
    assert all(7 not in reply[:-1] and len(reply) <= 250 for reply in replies)
    assert texts == sample_texts(model, [(3, 4), (5,)], ends={7}, tokens=600)


def test_calibration_reduces_the_error_on_unseen_text(demo_pair: Path) -> None:
    source = open_source(str(demo_pair / "target"))
    template = ChatTemplate((source.folder / "chat_template.jinja").read_text())
    rows = read_texts(PROMPTS, tokenizer=source.tokenizer, template=template, context=512)
    with reference_of(source.folder, replace(recipe(4), calibrated=True)) as plain:
        importance = find_importance(plain, [row.tokens for row in rows[60:160]], tied=True)
        original = logits(plain.of_originals(), rows[:4])
        errors = [float(((logits(way, rows[:4]) - original) ** 2).mean()) for way in (plain, plain.weighed(importance))]
    assert errors[1] < 0.9 * errors[0]


def logits(reference: Reference, rows: tuple[ScoredText, ...]) -> FloatArray:
    """Return the concatenated logits of the rows; each row attends only to itself."""
    owner = np.repeat(np.arange(len(rows)), [len(row.tokens) for row in rows])
    visible = np.tri(len(owner), dtype=np.bool_) & (owner[:, None] == owner[None, :])
    tokens = [token for row in rows for token in row.tokens]
    positions = [position for row in rows for position in range(len(row.tokens))]
    return reference.logits(tokens, visible=visible, positions=positions)
