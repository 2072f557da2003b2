"""Static graphs on the CPU provider: the base graph's logits and cache rows, with chains, trees and padding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.onnx_format.graph_check import Weights, check_graph

pytest.importorskip("onnx_ir")
import onnx_ir as ir
import onnxruntime

from edgedecode.export.graph.passes.static_shapes import StaticSize, static_shapes
from edgedecode.pack.static_graphs import HIDDEN_SCORE

DEMO = Path(str(__import__("edgedecode").__file__)).parent / "packs" / "demo"
WIDTH, SLOTS, PAST = 8, 64, 21
TREE = [-1, 0, 0, 1, 1, 2, 5]
"""Parents of the rows of a pass; -1 is the last settled position."""
CHAIN = [-1, 0, 1, 2, 3, 4, 5]
BOUND = 0.05  # of logits with a deviation near 3; 8-bit activations round differently by the order of sums


@dataclass(frozen=True)
class Pass:
    """A pass's logits and the rows that it adds to the cache, [2 · layers, KV heads, rows, head size]."""

    logits: FloatArray
    new: FloatArray


class Base:
    """The pack's base graph, run with a cache of `PAST` settled rows and a pass behind it."""

    def __init__(self, role: str) -> None:
        self.session = _session(DEMO / role / "base.onnx")
        self.caches = [value.name for value in self.session.get_inputs() if value.name.startswith("past")]
        self.shape = next(value.shape for value in self.session.get_inputs() if value.name == self.caches[0])

    def run(self, tokens: list[int], parents: list[int], past: FloatArray) -> Pass:
        length, rows = past.shape[2], len(tokens)
        visible = np.concatenate([np.ones((rows, length), bool), _ancestors(parents)], axis=1)
        feeds: dict[str, Any] = {
            "input_ids": np.asarray([tokens], np.int64),
            "position_ids": _positions(parents, length),
            "seqlens_k": np.asarray([length + rows - 1], np.int32),
            "total_length": np.asarray([length + rows], np.int32),
            "attention_bias": np.where(visible, 0, -1e30).astype(np.float32)[None, None],
            "rows": np.arange(rows),
        }
        feeds |= {name: past[index : index + 1] for index, name in enumerate(self.caches)}
        logits, *present = self.session.run(None, feeds)
        return Pass(logits, np.concatenate(present)[:, :, length:])


def run_static(session: Any, tokens: list[int], parents: list[int], past: FloatArray) -> Pass:
    """Run a pass on a static graph, padded to its width, as a runtime does."""
    named = {value.name: value.shape for value in session.get_inputs()}
    width, columns = named["attention_mask"][2:]
    slots, count, length = columns - width, len(tokens), past.shape[2]
    visible = np.zeros((width, columns), bool)
    visible[:, slots:] = np.eye(width, dtype=bool)
    visible[:count, :length] = True
    visible[:count, slots : slots + count] = _ancestors(parents)
    ids, positions = np.zeros((1, width), np.int64), np.zeros((1, width), np.int64)
    ids[0, :count], positions[0, :count] = tokens, _positions(parents, length)
    buffer = np.full((*past.shape[:2], slots, past.shape[3]), 3, np.float32)  # what an unused slot holds is hidden
    buffer[:, :, :length] = past
    picked = np.zeros(named["rows"][0], np.int64)
    picked[:count] = np.arange(count) if len(picked) >= count else count - 1
    mask = np.where(visible, 0, HIDDEN_SCORE).astype(np.float32)[None, None]
    feeds: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "attention_mask": mask, "rows": picked}
    caches = [name for name in named if name.startswith("past")]
    feeds |= {name: buffer[index : index + 1] for index, name in enumerate(caches)}
    feeds |= {name: np.zeros(named[name], np.float32) for name in named if name.startswith("lora")}
    logits, *present = session.run(None, feeds)
    return Pass(logits[:count], np.concatenate(present)[:, :, :count])


def _session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _ancestors(parents: list[int]) -> Any:
    seen = np.eye(len(parents), dtype=bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def _positions(parents: list[int], length: int) -> Any:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return np.asarray([depths], np.int64) + length


def make_static(role: str, size: StaticSize, folder: Path, *, graph: str = "base") -> Any:
    """Write the static graph beside a link to the weights and open it."""
    model = ir.load(DEMO / role / f"{graph}.onnx")
    static_shapes(model, size)
    weights = folder / "weights.bin"
    if not weights.exists():
        weights.write_bytes((DEMO / role / "weights.bin").read_bytes())
    ir.save(model, folder / f"static-{size.width}.onnx")
    return _session(folder / f"static-{size.width}.onnx")


def settled(base: Base, count: int = PAST) -> FloatArray:
    """Return the cache of a prompt of `count` tokens."""
    heads, size = base.shape[1], base.shape[3]
    empty = np.zeros((len(base.caches), heads, 0, size), np.float32)
    tokens = np.random.default_rng(5).integers(3, 8192, count).tolist()
    return base.run(tokens, list(range(-1, count - 1)), empty).new


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("parents", [CHAIN, TREE, [-1]], ids=["chain", "tree", "one row"])
def test_a_padded_pass_equals_the_base_graphs(role: str, parents: list[int], tmp_path: Path) -> None:
    base, static = Base(role), make_static(role, StaticSize(WIDTH, SLOTS), tmp_path)
    past, tokens = settled(base), list(range(40, 40 + len(parents)))
    wanted, found = base.run(tokens, parents, past), run_static(static, tokens, parents, past)
    assert np.abs(wanted.logits - found.logits).max() < BOUND * wanted.logits.std()
    assert (wanted.logits.argmax(axis=1) == found.logits.argmax(axis=1)).all()
    assert np.abs(wanted.new - found.new).max() < BOUND * wanted.new.std()


def test_the_pack_gate_reads_a_static_graph(tmp_path: Path) -> None:
    make_static("draft", StaticSize(WIDTH, SLOTS), tmp_path)
    weights = Weights("weights.bin", (tmp_path / "weights.bin").stat().st_size)
    found = check_graph(tmp_path / "static-8.onnx", weights)
    assert found.positions == 2048
    assert found.widths == {128}


def test_every_shape_is_static_and_a_wide_pass_has_one_row_of_logits(tmp_path: Path) -> None:
    for width, rows in ((1, 1), (16, 16), (32, 1)):
        session = make_static("draft", StaticSize(width, SLOTS), tmp_path)
        shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
        assert all(isinstance(part, int) for shape in shapes.values() for part in shape)
        assert shapes["logits"] == [rows, 8192]
        assert shapes["attention_mask"] == [1, 1, width, SLOTS + width]
        assert shapes["present.0.key"] == [1, 1, width, 64]
        assert list(shapes)[:4] == ["input_ids", "position_ids", "attention_mask", "rows"]


def test_a_wide_pass_returns_the_row_that_was_asked_for(tmp_path: Path) -> None:
    base, static = Base("draft"), make_static("draft", StaticSize(32, SLOTS), tmp_path)
    past, tokens = settled(base), list(range(40, 60))
    wanted = base.run(tokens, list(range(-1, 19)), past)
    found = run_static(static, tokens, list(range(-1, 19)), past)
    assert np.abs(wanted.logits[-1] - found.logits[0]).max() < BOUND * wanted.logits.std()


def test_adapter_inputs_get_a_fixed_rank_and_zeros_are_the_base_model(tmp_path: Path) -> None:
    base, static = Base("draft"), make_static("draft", StaticSize(WIDTH, SLOTS, rank=4), tmp_path, graph="lora")
    past = settled(base)
    wanted, found = base.run([40, 41], [-1, 0], past), run_static(static, [40, 41], [-1, 0], past)
    assert np.abs(wanted.logits - found.logits).max() < BOUND * wanted.logits.std()


def test_graphs_that_have_no_static_form_are_refused() -> None:
    with pytest.raises(ExportError, match="8-bit keys"):
        static_shapes(ir.load(DEMO / "draft" / "kv8.onnx"), StaticSize(WIDTH, SLOTS))
    with pytest.raises(ExportError, match="rank"):
        static_shapes(ir.load(DEMO / "draft" / "lora.onnx"), StaticSize(WIDTH, SLOTS))
