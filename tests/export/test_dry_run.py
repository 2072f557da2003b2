"""`export --dry-run`: the checks that need no weights, in one line each, with nothing written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.errors import ExportError, IncompatiblePair
from edgedecode.export.pair_export import PairPlan, PairRequest, check_pair
from tests.small_tokenizers import byte_fallback

from .conftest import export, recipe
from .test_hub import Hub, hub

__all__ = ["hub"]

pytestmark = pytest.mark.export


def checked(target: Path, draft: Path | None = None, *, out: Path | None = None, bits: int = 8) -> PairPlan:
    return check_pair(PairRequest(str(target), str(draft) if draft else None, Path(), recipe(bits)), out=out)


@pytest.mark.usefixtures("tables_too")
def test_dry_run_needs_no_weights(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(llama, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    assert main(["export", "--target", str(folder), "--bits", "4", "--no-mixed", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr().out
    report = json.loads(printed.splitlines()[-1])
    assert report["dry_run"]
    assert report["models"]["target"]["parameters"] > 50_000
    assert "dry run: nothing was written. Making the pack needs about" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_its_size_is_about_that_of_the_pack(llama: Path, tmp_path: Path) -> None:
    plan = checked(llama, llama)
    manifest = export(llama, tmp_path / "pack", draft=llama)
    padding = 2 * 40 * 4096  # tensors are page-aligned, which matters only in a tiny model
    assert plan.nbytes == pytest.approx(sum(manifest.weights_nbytes(role) for role in manifest.models), abs=padding)
    assert plan.nbytes > 1.5 * checked(llama).nbytes
    more = replace(PairRequest(str(llama), None, Path(), recipe(8)), gguf=True)
    assert check_pair(more, out=None).nbytes > 1.5 * checked(llama).nbytes


def test_the_output_folder_is_checked(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not empty"):
        checked(llama, out=llama)
    checked(llama, out=tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_an_incompatible_pair_is_refused(llama: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(llama, tmp_path / "other"))
    byte_fallback().save(str(other / "tokenizer.json"))
    with pytest.raises(IncompatiblePair, match="different tokenizers"):
        checked(llama, other)


@pytest.mark.usefixtures("tables_too")
def test_dry_run_downloads_no_weights(hub: Hub, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--target", "some/target", "--draft", "some/draft", "--dry-run", "--json"]) == 0
    assert hub.calls
    assert not hub.weights_downloaded
    printed = capsys.readouterr().out
    nbytes = json.loads(printed.splitlines()[-1])["models"]["target"]["download_nbytes"]
    assert nbytes == (llama / "model.safetensors").stat().st_size
    assert ", download of " in printed
