"""Every family and width, run by the public runtime and compared with transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterUse, LanguageModel, Output, RowRequest, State
from edgedecode.errors import ExportError
from edgedecode.export.checks import model_checks as checks
from edgedecode.export.checks.parity import NODES, ParityText, check_exact, check_kernels
from edgedecode.export.graph.recipe import Recipe
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.testing import TableModel, toy_tables

from .conftest import export, opened, recipe
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export


@pytest.mark.parametrize(
    "stored",
    [
        *(recipe(4, head_bits=4), recipe(4, head_bits=16), recipe(8, head_bits=32), recipe(16, head_bits=8)),
        recipe(4, block_size=128),
    ],
    ids=lambda stored: stored.name,
)
def test_export_with_separate_widths_of_head_and_body(stored: Recipe, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(hidden=128, mlp=256, head_size=32, tied=True))
    entry = export(folder, tmp_path / "pack", stored=stored).models["target"]
    assert (entry.bits, entry.head_bits) == (stored.body.bits, stored.head.bits)
    assert entry.block_size == stored.body.block_size
    assert entry.parity["max_error"] < 1e-4


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_forward_rows_do_not_depend_on_the_other_requested_rows(bits: int, llama: Path, tmp_path: Path) -> None:
    model = opened(export(llama, tmp_path / "pack", stored=recipe(bits)).models["target"], tmp_path / "pack")
    for width in (2, 3, 9):
        tokens = list(range(20, 20 + width))
        state = model.new_state(2 * width)
        model.forward(tokens, state, rows="none")
        state.keep(range(width))
        together = model.forward(tokens, state, rows="all").logits.copy()
        for row in range(width):
            state.crop(width)
            assert np.array_equal(model.forward(tokens, state, rows=(row,)).logits[0], together[row])
        state.close()
    model.close()


def test_export_stores_tied_weights_once(tmp_path: Path) -> None:
    sizes = {}
    for tied in (False, True):
        folder = write_model(tmp_path / f"model {tied}", TinyModel(tied=tied, rows=2048))
        manifest = export(folder, tmp_path / f"pack {tied}", stored=recipe(8))
        sizes[tied] = manifest.files["target/weights.bin"].nbytes
    assert sizes[False] - sizes[True] >= 2048 * 64


def test_parity_checks_the_engines_attention_and_ours(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def recording(model: LanguageModel, *given: object) -> Mapping[str, float]:
        checked.append(model.card.kernels)
        return {"full_error": 0.5 * len(checked)}

    monkeypatch.setattr(checks, "check_exact", recording)
    manifest = export(llama, tmp_path / "pack", stored=recipe(8))
    assert [bool(kernels) for kernels in checked] == ([False, True] if tried()[0] is not None else [False])
    assert manifest.models["target"].parity["full_error"] == 0.5 * len(checked)  # the larger error


def test_check_exact_refuses_a_wrong_model() -> None:
    model = TableModel(toy_tables(32, seed=1))
    text = ParityText.of(range(3, 20), length=24)
    with pytest.raises(ExportError, match="results do not match its weights"):
        check_exact(model, text, np.zeros((24 + NODES, 32), np.float32))


class Broken(TableModel):
    """A table model whose first logit is `value`, in all passes or only in those of a tree."""

    trees_only = False
    value = np.float32(np.nan)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        logits = super().forward(tokens, state, parents=parents, rows=rows, adapter=adapter).logits.copy()
        if parents is not None or not self.trees_only:
            logits[:, 0] = self.value
        return Output(logits)


def rows_of(model: TableModel, text: ParityText) -> FloatArray:
    """Return a correct model's rows for the text and for the tree that `parity` builds."""
    state = model.new_state(len(text.text) + len(text.tree))
    chain = model.forward(text.text, state, rows="all").logits.copy()
    state.keep(range(len(text.text)))
    branches = (*(-1,) * 16, *range(8, 24))
    tree = model.forward(text.tree, state, parents=(-1, 0, 0, 1, 1, 2, -1, 3, *branches), rows="all").logits
    return np.concatenate((chain, tree))


TABLES = toy_tables(32, seed=1)
TEXT = ParityText.of(range(3, 20), length=24)


def test_check_kernels_accepts_correct_kernels() -> None:
    numbers = check_kernels(TableModel(TABLES), TEXT, rows_of(TableModel(TABLES), TEXT))
    assert numbers["kernel_rms_error"] < 1e-6
    assert numbers["kernel_top1"] == 1.0


@pytest.mark.parametrize("value", [np.nan, 1e3], ids=["not a number", "far off"])
@pytest.mark.parametrize("trees_only", [False, True], ids=["everywhere", "in trees"])
def test_check_kernels_refuses_broken_kernels(trees_only: bool, value: float) -> None:
    model = Broken(TABLES)
    model.trees_only, model.value = trees_only, np.float32(value)
    ways = "relative error branches .*tree" if trees_only else "relative error max .*crop .*pieces .*branches .*tree"
    with pytest.raises(ExportError, match=f"shipped kernels.* do not match .*{ways}"):
        check_kernels(model, TEXT, rows_of(TableModel(TABLES), TEXT))
