"""`bench --scale` on exported packs of every family with separate gate and up projections."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.bench.scale.scaled import scaled_pack
from edgedecode.errors import CapabilityError
from edgedecode.export.graph.graph_request import GraphRequest
from edgedecode.pack.manifest import Manifest

from .conftest import export, recipe
from .test_architectures import SHAPES
from .test_parity import engine_logits
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export

FAMILIES = {name: SHAPES[name] for name in ("gemma2", "gemma3", "granite", "phi3", "qwen3", "smollm3")}
FAMILIES["llama"] = TinyModel()
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 320, 60)]


def widen(pack: Path, *, scale: str = "1MB") -> Path:
    return scaled_pack(Namespace(scale=scale, model=pack, runtime=None))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_widening_keeps_the_logits_of_every_family(family: str, bits: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", replace(FAMILIES[family], mlp=128))
    manifest = export(model, tmp_path / "pack", stored=recipe(bits), graphs=GraphRequest(("base", "hidden")))
    folder = widen(tmp_path / "pack")
    wider = Manifest.load(folder)
    assert abs(wider.weights_nbytes("target") / 1e6 - 1) < 0.05
    before, after = engine_logits(manifest, tmp_path / "pack", TOKENS), engine_logits(wider, folder, TOKENS)
    assert np.abs(before - after).max() < 2e-2  # the order of summation differs, and 8-bit rounding amplifies that
    assert (before.argmax(-1) == after.argmax(-1)).mean() > 0.97


def test_widening_refuses_floats(tmp_path: Path) -> None:
    export(write_model(tmp_path / "model", FAMILIES["llama"]), tmp_path / "pack", stored=recipe(32))
    with pytest.raises(CapabilityError, match="0 of the 2 MLPs of the target can be widened"):
        widen(tmp_path / "pack")
