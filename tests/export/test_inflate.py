"""An inflated model is larger and computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.errors import ExportError
from edgedecode.export.inflate import Inflation, inflate_model
from edgedecode.export.stages import Stages

from .conftest import export, recipe
from .test_parity import engine_logits, framework_logits
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 320, 60)]


def inflate(folder: Path, out: Path, *, nbytes: int = 400_000, seed: int = 0) -> Inflation:
    return inflate_model(str(folder), out, weights_nbytes=nbytes, seed=seed, stages=Stages())


@pytest.mark.parametrize(
    "tiny",
    [TinyModel(), TinyModel(tied=True, dtype="bfloat16"), TinyModel(family="qwen2", dtype="float16", shard="60KB")],
    ids=["llama", "tied bfloat16", "qwen2 float16 sharded"],
)
def test_the_function_is_kept(tiny: TinyModel, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny)
    result = inflate(folder, tmp_path / "big")
    before, after = framework_logits(folder, TOKENS), framework_logits(tmp_path / "big", TOKENS)
    assert np.abs(after - before).max() < 1e-5 * max(1.0, float(before.std()))
    assert result.mlp % 128 == 0
    assert json.loads((tmp_path / "big" / "config.json").read_text())["intermediate_size"] == result.mlp


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_the_exported_function_is_kept(bits: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(mlp=128))
    inflate(folder, tmp_path / "big")
    packs = {}
    for name in ("model", "big"):
        manifest = export(tmp_path / name, tmp_path / f"{name} pack", stored=recipe(bits))
        packs[name] = engine_logits(manifest, tmp_path / f"{name} pack", TOKENS)
    assert np.abs(packs["big"] - packs["model"]).max() < 2e-2  # summation order, and what 8-bit rounding makes of it
    assert (packs["big"].argmax(-1) == packs["model"].argmax(-1)).mean() > 0.97


def test_the_size_is_reached_and_counted_right(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    result = inflate(folder, tmp_path / "big", nbytes=500_000)
    one_step = 3 * 2 * 128 * 64 * 5 / 8
    assert 500_000 <= result.weights_nbytes < 500_000 + one_step
    manifest = export(tmp_path / "big", tmp_path / "pack", stored=recipe(4))
    beside = 32_000  # norms, rotary tables, alignment
    assert 0 <= manifest.files["target/weights.bin"].nbytes - result.weights_nbytes < beside


def test_new_units_are_not_zero_and_weigh_nothing(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(mlp=128))
    inflate(folder, tmp_path / "big")
    mlp = AutoModelForCausalLM.from_pretrained(tmp_path / "big", dtype=torch.float32).model.layers[1].mlp
    assert not mlp.down_proj.weight[:, 128:].any()
    for weight in (mlp.gate_proj.weight, mlp.up_proj.weight):
        old, new = weight[:128].detach().std(), weight[128:].detach().std()
        assert 0.9 < float(new / old) < 1.1


def test_the_seed_decides(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel())
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        inflate(folder, tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_texts_come_along(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(shard="60KB"))
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    inflate(folder, tmp_path / "big")
    made = {path.name for path in (tmp_path / "big").iterdir()}
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json", "LICENSE", "README.md"} <= made
    assert {name for name in made if "safetensors" in name or name.endswith(".bin")} == {"model.safetensors"}


def test_a_larger_model_is_not_shrunk(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"already weighs .* MB in int4: ask for more"):
        inflate(llama, tmp_path / "big", nbytes=1000)
    assert not list(tmp_path.iterdir())


def test_a_taken_folder_is_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="is not empty"):
        inflate(llama, tmp_path)
