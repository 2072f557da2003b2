"""Weights prepared as tiles: the progress bar, and the work that a second opening skips."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.node import Node
from edgedecode.onnx_format.tensor import ExternalData, Tensor
from edgedecode.runtimes.onnx.kernels import prepared
from edgedecode.runtimes.onnx.kernels.library import KernelLibrary, Matrix
from edgedecode.runtimes.onnx.kernels.products import Stored, WeightsFile, read_matrix
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.user_notices import show_work

LIBRARY, REASON = tried()
ATTRIBUTES = {"N": 16, "K": 32, "bits": 8, "block_size": 32, "accuracy_level": 4}
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / prepared.FOLDER


def open_target() -> None:
    with edgedecode.load(runtime="onnx") as pair:
        assert pair.target.card.kernels


class Bars:
    """Record each bar's title and its updates."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.totals: list[int] = []
        self.amounts: list[float] = []
        self.ended = 0

    @contextmanager
    def __call__(self, what: str, total: int) -> Iterator[Callable[[float], None]]:
        self.titles.append(what)
        self.totals.append(total)
        yield self.amounts.append
        self.ended += 1


@pytest.fixture
def bars() -> Iterator[Bars]:
    found = Bars()
    show_work(found)
    yield found
    show_work(None)


def test_prepare_shows_a_bar_for_many_tiles_and_none_for_cached_ones(
    cache: Path, bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "_LONG_NBYTES", 0)
    open_target()
    (made,) = cache.glob("*.tiles")
    assert bars.titles == ["preparing weights, MB"]
    assert bars.totals == [round(made.stat().st_size / 1e6)]
    assert len(bars.amounts) > 10
    assert sum(bars.amounts) == pytest.approx(made.stat().st_size / 1e6)
    assert bars.ended == 1
    open_target()
    assert len(bars.titles) == 1


def test_prepare_of_a_small_pack_shows_no_bar(cache: Path, bars: Bars) -> None:
    open_target()
    assert list(cache.glob("*.tiles"))
    assert bars.titles == []


@pytest.fixture
def inspected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of the bytes of weights that each inspection reads."""
    found: list[int] = []
    inspect = KernelLibrary.inspect

    def counting(self: KernelLibrary, matrix: Matrix) -> int:
        found.append(matrix.packed.nbytes)
        return inspect(self, matrix)

    monkeypatch.setattr(KernelLibrary, "inspect", counting)
    return found


def test_open_again_does_not_read_the_weights(cache: Path, inspected: list[int]) -> None:
    open_target()
    assert sum(inspected) > 5e6
    inspected.clear()
    open_target()
    assert inspected == []


@pytest.mark.parametrize("damage", ["cut off", "another file's", "no number", "too large", "gone"])
def test_findings_that_are_damaged_are_computed_again(cache: Path, inspected: list[int], damage: str) -> None:
    open_target()
    (path,) = cache.glob("*.found*")
    kept = json.loads(path.read_text(encoding="utf-8"))
    count = len(inspected)
    ((digest, findings),) = kept.items()
    assert count == len(findings)
    first = next(iter(findings))
    if damage == "cut off":
        path.write_text(path.read_text(encoding="utf-8")[:-9], encoding="utf-8")
    elif damage == "gone":
        path.unlink()
    else:
        changed = {
            "another file's": {"0" * 64: findings},
            "no number": {digest: {**findings, first: "none"}},
            "too large": {digest: {**findings, first: 8}},
        }
        path.write_text(json.dumps(changed[damage]), encoding="utf-8")
    inspected.clear()
    open_target()
    assert len(inspected) == (1 if damage == "too large" else count)
    assert json.loads(path.read_text(encoding="utf-8")) == kept


def test_findings_of_a_matrix_decide_how_its_tiles_are_used(tmp_path: Path) -> None:
    """Findings come from the first opening: a matrix that needs wide scales has them in the second opening too."""
    assert LIBRARY is not None
    packed = np.full((16, 1, 32), 129, np.uint8)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(packed.tobytes() + np.full(16, 0.1, np.float32).tobytes())
    file = GraphFile(
        nodes=[Node("MatMulNBits", "com.microsoft", "", ["x", "w", "s"], ["y"], dict(ATTRIBUTES))],
        initializers={
            "w": Tensor("w", 2, (16, 1, 32), external=ExternalData("weights.bin", 0, 512)),
            "s": Tensor("s", 1, (16,), external=ExternalData("weights.bin", 512, 64)),
        },
    )
    first = WeightsFile(weights)
    found = read_matrix(file.nodes[0], file, first, LIBRARY)
    second = WeightsFile(weights, findings=first.findings)
    again = read_matrix(file.nodes[0], file, second, LIBRARY)
    assert isinstance(found, Stored)
    assert isinstance(again, Stored)
    assert found.matrix.wide_scales
    assert again.matrix.wide_scales
    assert second.findings == first.findings


def test_prepare_removes_files_of_another_layout(cache: Path) -> None:
    cache.mkdir(parents=True)
    old = [cache / name for name in ("a.tiles", "a.json", "b.v1.tiles", "b.v1.json", "c.found1")]
    for path in old:
        path.write_bytes(b"of an older edgedecode")
    other = cache / "d.txt"
    other.write_bytes(b"not ours to judge")
    open_target()
    assert not any(path.exists() for path in old)
    assert other.exists()
    assert list(cache.glob("*.tiles"))
