"""The second moments of inputs: their source, and their gain on trained weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.export.base_model import find_weights, open_source
from edgedecode.export.checks.reference import Reference
from edgedecode.export.graph.checkpoint import Checkpoint
from edgedecode.export.graph.network import open_network
from edgedecode.export.graph.recipe import EMBEDDING, HEAD, Recipe
from edgedecode.export.recipes.calibration import find_moments, sample_texts
from edgedecode.export.stages import Stages
from edgedecode.testing import TableModel, toy_tables

from .conftest import export, recipe
from .gguf.test_hybrid_export import MODELS as HYBRID_MODELS
from .tiny import write_network

pytestmark = pytest.mark.export

PROMPTS = Path(__file__).parents[2] / "apps" / "prompts.jsonl"


@contextmanager
def reference_of(folder: Path, stored: Recipe) -> Iterator[Reference]:
    source = open_source(str(folder))
    checkpoint = Checkpoint(find_weights(source, Stages()))
    network = open_network(folder, checkpoint, architecture=source.shape.architecture)
    yield Reference(network, stored.of(source.shape), release=checkpoint.release)
    checkpoint.close()


def test_find_moments_are_those_of_the_inputs(llama: Path) -> None:
    texts = [list(range(10, 40)), list(range(50, 55))]
    names = {HEAD, "model.layers.0.attn.qkv_proj", "model.layers.1.mlp.down_proj"}
    with reference_of(llama, recipe(4)) as reference:
        found = find_moments(reference, texts, tied=False, wanted=names)
    network = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    inputs: list[FloatArray] = []
    down = network.model.layers[1].mlp.down_proj
    down.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0].numpy()))
    with torch.inference_mode():
        hidden = [network.model(torch.tensor([text])).last_hidden_state[0].numpy() for text in texts]
    for name, values in (("model.layers.1.mlp.down_proj", inputs), (HEAD, hidden)):
        rows = np.concatenate(values)
        (moments,) = found[name].pieces
        np.testing.assert_allclose(moments, rows.T @ rows / len(rows), rtol=1e-3, atol=1e-5 * float((rows**2).mean()))
    assert set(found) == names


def test_texts_of_a_recurrent_model_do_not_share_a_state(tmp_path: Path) -> None:
    folder, texts = write_network(tmp_path / "model", HYBRID_MODELS["qwen35"]()), [list(range(10, 40)), [50, 51, 52]]
    name = "model.layers.1.linear_attn.in_proj"
    with reference_of(folder, recipe(4)) as reference:
        (moments,) = find_moments(reference, texts, tied=True, wanted={name})[name].pieces
    network, inputs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), list[FloatArray]()
    read = network.model.layers[1].linear_attn.in_proj_qkv
    read.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0].numpy()))
    with torch.inference_mode():
        for text in texts:
            network.model(torch.tensor([text]))
    rows = np.concatenate(inputs)
    np.testing.assert_allclose(moments, rows.T @ rows / len(rows), rtol=1e-3, atol=1e-5 * float((rows**2).mean()))


def test_find_moments_cuts_long_texts_and_batches_short_ones(llama: Path) -> None:
    done: list[int] = []
    with reference_of(llama, recipe(4)) as reference:
        texts = [[7] * 1500, *[[9] * 100] * 3]
        found = find_moments(reference, texts, tied=True, wanted={EMBEDDING}, progress=done.append)
    assert sum(done) == 1800
    assert max(done) <= 1024
    assert found[HEAD] is found[EMBEDDING]


def test_sample_texts_stops_at_the_token_count() -> None:
    model = TableModel(toy_tables(32, seed=1))
    texts = sample_texts(model, [(3, 4), (5,)], ends={7}, tokens=600)
    replies = [text[len(prompt) :] for text, prompt in zip(texts, [(3, 4), (5,)] * len(texts), strict=False)]
    assert sum(map(len, replies)) == 600
    assert all(7 not in reply[:-1] and len(reply) <= 250 for reply in replies)
    assert texts == sample_texts(model, [(3, 4), (5,)], ends={7}, tokens=600)


def test_calibration_reduces_the_error_on_unseen_text(demo_pair: Path, tmp_path: Path) -> None:
    losses = []
    for calibrated in (False, True):
        stored, text = replace(recipe(4), calibrated=calibrated), PROMPTS if calibrated else None
        manifest = export(demo_pair / "draft", tmp_path / f"{calibrated}", stored=stored, calibration=text)
        losses.append(manifest.models["target"].parity["loss_kl"])
    assert losses[1] < 0.8 * losses[0]
