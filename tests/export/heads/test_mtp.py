"""MTP layers as drafting heads: the formula, every family's names, and what is refused."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file, save_file

from edgedecode.decoding.heads import DraftHead, FeatureState
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import ExportError
from edgedecode.export.heads.gguf_head import write_gguf_head
from edgedecode.export.heads.head_entry import head_entry
from edgedecode.export.heads.layouts import read_head
from edgedecode.export.heads.target_rows import with_output
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape

from .mtp_written import LAYOUTS, Reference, TinyLayer, largest, random_states, write_mimo, write_nextn, write_qwen

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT = 1e-3
SHAPE = ToyShape(hidden=64, rows=160, layers=8)


@dataclass(frozen=True)
class Target:
    root: Path
    entry: ModelEntry
    model: LanguageModel
    matrices: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Return a model of 8 bits that keeps what follows its final norm."""
    root = tmp_path_factory.mktemp("target")
    entry = replace(write_toy_gguf(root, SHAPE, quantization="Q8_0"), graphs={}, weights=GGUF)
    request = ModelRequest(entry, root, "target", SHAPE.rows, Budget(), threads=1, taps=(SHAPE.layers,))
    matrices = {
        each.name: torch.from_numpy(dequantize(each.data, each.tensor_type).copy())
        for each in GGUFReader(root / GGUF).tensors
        if each.name in ("token_embd.weight", "output.weight", "output_norm.weight")
    }
    with closing(OnnxRuntime().open(request)) as model:
        yield Target(root, entry, model, matrices)


def open_layer(root: Path, source: Path, target: Target) -> DraftHead:
    """Write an MTP layer as a pack holds it, in floats, and open it."""
    head, path = with_output(read_head(source), target.entry, target.root), root / "head.gguf"
    with path.open("wb") as file:
        write_gguf_head(file, head, bits=32, taps=(SHAPE.layers,))
    entry = head_entry(head, file=path.name, bits=32, taps=(SHAPE.layers,), source="test")
    request = ModelRequest(entry, root, "head", SHAPE.rows, Budget(), threads=1, beside=target.model)
    model = OnnxRuntime().open(request)
    assert isinstance(model, DraftHead)
    return model


@pytest.mark.parametrize("name", LAYOUTS)
def test_layer_is_the_formula(name: str, target: Target, tmp_path: Path) -> None:
    write, layer = LAYOUTS[name]
    states, tokens = random_states(15, layer.hidden)
    output = target.matrices.get("output.weight", target.matrices["token_embd.weight"])
    reference, found = Reference(layer, target.matrices["token_embd.weight"], output), []
    with closing(open_layer(tmp_path, write(tmp_path / "source", layer), target)) as model:
        assert model.card.rows == SHAPE.rows
        with closing(model.new_state(32)) as state:
            for start, stop in ((0, 7), (7, 12)):  # what is read, three steps of a draft, and the same after a rollback
                read = model.draft(tokens[start:stop], state, features=states[start:stop].numpy())
                state.keep(range(stop - start))
                logits, after = reference.read(states[start:stop], tokens[start:stop])
                found += [largest(read.logits, logits[-1]), largest(read.hidden, after[-1])]
                for token in tokens[12:15]:
                    read = model.draft([token], state, hidden=read.hidden[None])
                    state.keep([0])
                    logits, after = reference.read(after[-1:], [token])
                    found += [largest(read.logits, logits[0]), largest(read.hidden, after[0])]
                state.crop(stop)
                reference.crop(stop)
    print(f"{name}: {max(found):.1e}")
    assert len(found) == 16
    assert max(found) < EXACT


def test_features_are_every_rows_values_after_the_final_norm(target: Target) -> None:
    """The target's own logits are these values times its last matrix."""
    tokens = list(range(40, 60))
    output = target.matrices.get("output.weight", target.matrices["token_embd.weight"]).numpy()
    with closing(target.model.new_state(64)) as state, closing(target.model.new_state(64)) as other:
        assert isinstance(state, FeatureState)
        features = state.keep_features()
        target.model.forward(tokens, state, rows="none")
        state.keep(range(len(tokens)))
        logits = target.model.forward(tokens, other, rows="all").logits
        assert np.abs(features.rows(0, len(tokens)) @ output.T - logits).max() < 0.05 * np.abs(logits).max()


def _edited(folder: Path, edit: str, values: torch.Tensor | None) -> Path:
    write_qwen(folder, TinyLayer())
    tensors = load_file(folder / "model.safetensors")
    if values is None:
        del tensors[edit]
    else:
        tensors[edit] = values
    save_file(tensors, folder / "model.safetensors")
    return folder


REFUSED = {
    "Qwen3.8's": ("mtp.fc_embedding.weight", torch.zeros(64, 64), r"Qwen3.8's MTP \(mtp.fc_embedding\)"),
    "experts": ("mtp.layers.0.mlp.experts.0.up_proj.weight", torch.zeros(2, 2), "a mixture of experts"),
    "latent attention": ("mtp.layers.0.self_attn.kv_a_proj_with_mqa.weight", torch.zeros(2, 2), "latent attention"),
    "two layers": ("mtp.layers.1.input_layernorm.weight", torch.zeros(64), "2 MTP layers: one is supported"),
    "no fc": ("mtp.fc.weight", None, r"lacks fc.weight \(eh_proj, fc, input_proj"),
    "no matrix": ("mtp.layers.0.mlp.up_proj.weight", None, "lacks 1 tensor, blk.0.ffn_up.weight: "),
    "another size": ("mtp.fc.weight", torch.zeros(32, 64), r"makes fc.weight \[64, 128\], the file has \[32, 64\]"),
    "a norm twice": ("model.mtp.norm.weight", torch.zeros(64), "two tensors that are output_norm.weight here"),
    "a part of its own": ("mtp.layers.0.extra.weight", torch.zeros(2), "has, blk.0.extra.weight: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_layers_are_refused_by_name(name: str, tmp_path: Path) -> None:
    edit, values, message = REFUSED[name]
    with pytest.raises(ExportError, match=message) as error:
        read_head(_edited(tmp_path / "model", edit, values))
    assert "\n" not in str(error.value)


def test_layers_keep_their_kind_in_a_file(tmp_path: Path) -> None:
    """A head's file, read again, has the same shape and tensors; a model without the layer is no head."""
    head = read_head(write_mimo(tmp_path / "mimo", LAYOUTS["MiMo"][1]))
    assert head.shape.is_mtp
    assert head.shape.rotated == 32
    model = write_nextn(tmp_path / "gguf", replace(TinyLayer(), seed=4))
    assert read_head(model).shape.gated
    toy = write_toy_gguf(tmp_path, SHAPE)
    with pytest.raises(ExportError, match="a drafting head has 'eagle3'"):
        read_head(tmp_path / toy.gguf)
