"""A head's graph on our kernels computes what the formula says, for every layout and flag, in float32."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from gguf import GGUFReader, dequantize

from edgedecode.decoding.heads import DraftHead
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.export.heads.gguf_head import write_gguf_head
from edgedecode.export.heads.head_entry import head_entry
from edgedecode.export.heads.layouts import read_head
from edgedecode.memory.budget import Budget
from edgedecode.runtimes.onnx import OnnxRuntime
from edgedecode.runtimes.onnx.features import features_nbytes
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.testing import TableModel, toy_tables
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape

from .written import IN_GGUF, LAYOUTS, VARIANTS, Reference, TinyHead, write_flat

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
EXACT = 1e-3
SHAPE = ToyShape(hidden=64, rows=160, layers=8)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LanguageModel, torch.Tensor]]:
    """Return a model of 8 bits, and its embedding."""
    root = tmp_path_factory.mktemp("target")
    entry = replace(write_toy_gguf(root, SHAPE, quantization="Q8_0"), graphs={}, weights=GGUF)
    request = ModelRequest(entry, root, "target", SHAPE.rows, Budget(), threads=1, taps=(2, 4, 5))
    (table,) = [each for each in GGUFReader(root / GGUF).tensors if each.name == "token_embd.weight"]
    with closing(OnnxRuntime().open(request)) as model:
        yield model, torch.from_numpy(dequantize(table.data, table.tensor_type).copy())


def open_head(
    root: Path, source: Path, target: LanguageModel, *, bits: int = 32, budget: Budget | None = None
) -> DraftHead:
    """Write a head as a pack holds it, and open it."""
    head, path = read_head(source), root / "head.gguf"
    with path.open("wb") as file:
        write_gguf_head(file, head, bits=bits, taps=(2, 4, 5))
    entry = head_entry(head, file=path.name, bits=bits, taps=(2, 4, 5), source="test")
    request = ModelRequest(entry, root, "head", SHAPE.rows, budget or Budget(), threads=1, beside=target)
    model = OnnxRuntime().open(request)
    assert isinstance(model, DraftHead)
    return model


def largest(found: Any, wanted: torch.Tensor) -> float:
    return float(np.abs(np.asarray(found) - wanted.numpy()).max())


def errors(
    model: DraftHead, head: TinyHead, table: torch.Tensor, *, weights: dict[str, torch.Tensor] | None = None
) -> list[float]:
    """Return the largest errors of reading, steps, and reading again after a rollback. weights: of the reference."""
    random = torch.Generator().manual_seed(11)
    features = torch.randn(12, 3 * head.target_hidden, generator=random)
    tokens = torch.randint(head.vocabulary, (16,), generator=random).tolist()
    reference, found = Reference(head, table, weights or {}), []
    with closing(model.new_state(32)) as state:
        for start, stop in ((0, 7), (7, 12)):
            output = model.draft(tokens[start:stop], state, features=features[start:stop].numpy())
            state.keep(range(stop - start))
            logits, after = reference.read(features[start:stop], tokens[start:stop])
            found += [largest(output.logits, logits[-1]), largest(output.hidden, after[-1])]
            g = after[-1:]
            for token in tokens[12:15]:
                output = model.draft([token], state, hidden=output.hidden[None])
                state.keep([0])
                logits, g = reference.step(g, [token])
                found += [largest(output.logits, logits[0]), largest(output.hidden, g[0])]
            state.crop(stop)
            reference.crop(stop)
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VARIANTS)
def test_head_is_the_formula(
    name: str, layout: str, target: tuple[LanguageModel, torch.Tensor], tmp_path: Path
) -> None:
    source = LAYOUTS[layout](tmp_path / layout, VARIANTS[name])
    with closing(open_head(tmp_path, source, target[0])) as model:
        found = errors(model, VARIANTS[name], target[1])
    print(f"{name}, {layout}: {max(found):.1e}")
    assert len(found) == 16
    assert max(found) < EXACT


def stored_weights(path: Path, head: TinyHead) -> dict[str, torch.Tensor]:
    """Return the weights that a head's file holds, by the flat layout's names."""
    stored = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    found = {}
    for name, values in head.tensors().items():
        module, _, kind = name.rpartition(".")
        tensor = stored[f"{IN_GGUF[module]}.{kind}"]
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type)).reshape(values.shape)
        if module[-6:] in ("q_proj", "k_proj"):
            array = array.reshape(-1, head.head_size // 2, 2, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        found[name] = torch.from_numpy(array.copy())
    return found


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_rounded_weights_are_the_formula_with_these_weights(
    bits: int, target: tuple[LanguageModel, torch.Tensor], tmp_path: Path
) -> None:
    head = TinyHead()
    with closing(open_head(tmp_path, write_flat(tmp_path / "flat", head), target[0], bits=bits)) as model:
        found = errors(model, head, target[1], weights=stored_weights(tmp_path / "head.gguf", head))
    print(f"{bits} bits: {max(found):.1e}")
    assert max(found) < EXACT


def test_bits_do_not_depend_on_the_width_of_a_pass(target: tuple[LanguageModel, torch.Tensor], tmp_path: Path) -> None:
    features = np.random.default_rng(5).standard_normal((9, 192)).astype(np.float32)
    tokens, found = list(range(3, 12)), []
    with closing(open_head(tmp_path, write_flat(tmp_path / "flat", TinyHead()), target[0], bits=8)) as model:
        assert model.card.row_invariant
        for width in (1, 2, 9):
            state = model.new_state(16)
            for start in range(0, 9, width):
                stop = min(start + width, 9)
                output = model.draft(tokens[start:stop], state, features=features[start:stop])
                state.keep(range(stop - start))
            found.append(np.concatenate([output.logits, output.hidden]))
            state.close()
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_head_of_another_size_or_without_a_target_of_ours_is_refused(
    target: tuple[LanguageModel, torch.Tensor], tmp_path: Path
) -> None:
    wide = write_flat(tmp_path / "wide", TinyHead(hidden=96))
    with pytest.raises(CapabilityError, match="for embeddings of 96 values, the target's have 64"):
        open_head(tmp_path, wide, target[0])
    with pytest.raises(CapabilityError, match="reads its target's embedding"):
        open_head(tmp_path, write_flat(tmp_path / "flat", TinyHead()), TableModel(toy_tables(160, seed=1)))


def test_the_plan_holds_the_head_and_what_its_target_keeps(
    target: tuple[LanguageModel, torch.Tensor], tmp_path: Path
) -> None:
    budget = Budget()
    with closing(open_head(tmp_path, write_flat(tmp_path / "flat", TinyHead()), target[0], budget=budget)) as model:
        with closing(model.new_state(64)):
            held = {lease.name: lease.nbytes for lease in budget.leases}
        assert model.card.token_ids is not None
        assert model.card.token_ids.tolist() == TinyHead().ids().tolist()
    entry = head_entry(read_head(tmp_path / "flat"), file="head.gguf", bits=32, taps=(2, 4, 5), source="test")
    entry = replace(entry, taps=(2, 4, 5))
    plan = OnnxRuntime().footprint(ModelRequest(entry, tmp_path, "head", SHAPE.rows, Budget(), threads=1))
    planned = {holder.name: holder.nbytes for holder in (*plan.loaded, *plan.state(64))}
    assert planned.pop("features:target") == features_nbytes(3, 64)
    assert planned.keys() == held.keys()
    assert all(held[name] <= nbytes <= held[name] + 64 for name, nbytes in planned.items())


@pytest.mark.parametrize("wrong", ["descending", "beyond", "few"])
def test_ids_that_no_draft_may_have_are_refused(
    wrong: str, target: tuple[LanguageModel, torch.Tensor], tmp_path: Path
) -> None:
    with closing(open_head(tmp_path, write_flat(tmp_path / "flat", TinyHead()), target[0])):
        path = tmp_path / "head.gguf"
    data, ids = path.read_bytes(), TinyHead().ids().astype("<i8")
    other = {"descending": ids[::-1], "beyond": ids + SHAPE.rows, "few": ids}[wrong]
    path.write_bytes(data.replace(ids.tobytes(), other.tobytes()))
    entry = head_entry(read_head(tmp_path / "flat"), file=path.name, bits=32, taps=(2, 4, 5), source="test")
    entry = replace(entry, rows=95 if wrong == "few" else entry.rows, taps=(2, 4, 5))
    with pytest.raises(ManifestError, match="no ascending ids"):
        OnnxRuntime().open(ModelRequest(entry, tmp_path, "head", SHAPE.rows, Budget(), beside=target[0]))
