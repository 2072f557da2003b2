"""Weights as tiles: what making them says, and what a second opening need not do again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import edgedecode
from edgedecode.notices import show_work
from edgedecode.runtimes.onnx.kernels import prepared
from edgedecode.runtimes.onnx.kernels.library import tried

LIBRARY, REASON = tried()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason=f"no kernels: {REASON}")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / prepared.FOLDER


def open_target() -> None:
    with edgedecode.load(runtime="onnx") as pair:
        assert pair.target.card.kernels


class Bars:
    """Keeps what each bar was of, and what moved it."""

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


def test_making_many_tiles_moves_a_bar_and_opening_made_ones_shows_none(
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


def test_a_small_pack_is_prepared_without_a_bar(cache: Path, bars: Bars) -> None:
    open_target()
    assert list(cache.glob("*.tiles"))
    assert bars.titles == []
