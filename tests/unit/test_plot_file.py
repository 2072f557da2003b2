"""Files of `--plot`: formats and places that cannot work are refused before anything is measured."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from edgedecode.errors import InputError, RuntimeUnavailable
from edgedecode.plot_file import check_plot, write_plot


def test_write_plot_that_fails_leaves_no_file(tmp_path: Path) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    taken = tmp_path / "taken.svg"
    taken.mkdir()
    with pytest.raises(InputError, match="cannot be written"):
        write_plot(taken, figure)
    assert [file.name for file in tmp_path.iterdir()] == ["taken.svg"]


def test_check_plot_refuses_unusable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name, expected in (("x.pdf", "charts are .svg or .png files"), ("no/such/folder/x.svg", "there is no folder")):
        with pytest.raises(InputError, match=expected):
            check_plot(tmp_path / name)
    monkeypatch.setattr("edgedecode.plot_file.tempfile.TemporaryFile", full)
    monkeypatch.setattr("edgedecode.plot_file.find_spec", lambda name: name)
    with pytest.raises(InputError, match=r"x\.png cannot be written: No space left on device"):
        check_plot(tmp_path / "x.png")


def test_check_plot_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedecode.plot_file.find_spec", lambda name: None)
    with pytest.raises(RuntimeUnavailable, match=r"--plot needs matplotlib.*pip install 'edgedecode\[plot\]'"):
        check_plot(tmp_path / "x.svg")
