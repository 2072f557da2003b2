"""`export --dry-run`: the forecast, made without weights, and the refusals that need no weights."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.cli import main
from edgedecode.errors import ExportError, IncompatiblePair
from edgedecode.export.forecast import PairForecast, forecast_pair, time_class
from edgedecode.export.graph.graph_request import GraphRequest
from edgedecode.export.pair_export import PairRequest
from tests.small_tokenizers import byte_fallback

from .conftest import export, recipe
from .test_hub import Hub, hub

__all__ = ["hub"]

pytestmark = pytest.mark.export

SEVEN_BILLION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


def forecast(target: Path | str, draft: Path | None = None, *, out: Path | None = None, bits: int = 4) -> PairForecast:
    request = PairRequest(str(target), str(draft) if draft else None, Path(), recipe(bits))
    return forecast_pair(request, out=out)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder that contains only the config.json of a 7B Llama."""
    folder = tmp_path / "seven"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SEVEN_BILLION))
    return folder


def test_forecast_of_a_large_model_needs_only_its_config(large: Path) -> None:
    found = forecast(large)
    (model,) = found.models
    assert 6.7e9 < model.parameters < 6.8e9
    assert 4.0e9 < model.weights_nbytes < found.nbytes < 4.6e9
    assert found.peak_nbytes > 2 * model.weights_nbytes
    assert time_class(found.seconds) == "minutes"
    assert [note.partition(":")[0] for note in model.notes] == ["no tokenizer.json", "no weights"]
    assert forecast(large, bits=8).nbytes > 1.5 * found.nbytes
    assert [path.name for path in large.iterdir()] == ["config.json"]


def test_forecast_matches_the_exported_pack(llama: Path, tmp_path: Path) -> None:
    found = forecast(llama, llama, bits=8)
    manifest = export(llama, tmp_path / "pack", draft=llama)
    for model in found.models:
        entry = manifest.models[model.role]
        padding = 40 * 4096  # tensors are page-aligned, which matters only in a tiny model
        assert model.weights_nbytes == pytest.approx(manifest.files[entry.weights].nbytes, rel=0.02, abs=padding)
        assert model.notes == ()
    assert found.nbytes == pytest.approx(manifest.nbytes, rel=0.02, abs=2 * padding)


@pytest.mark.parametrize(
    ("seconds", "name"), [(1, "seconds"), (60, "about a minute"), (1000, "minutes"), (1e5, "hours")]
)
def test_time_class_names_the_order_of_magnitude(seconds: float, name: str) -> None:
    assert time_class(seconds) == name


@pytest.mark.usefixtures("tables_too")
def test_dry_run_prints_a_table_and_a_json_line(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bits", "4", "--no-mixed", "--no-calibrated", "--noise-positions", "2000", "--dry-run", "--json"]
    assert main(["export", "--target", str(large), *words]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"target: kernel noise +minutes", printed)
    assert "dry run: nothing was written. The pack would take about 43" in printed
    report = json.loads(printed.splitlines()[-1])
    assert (report["dry_run"], report["time_class"], report["cores"]) == (True, "minutes", 2)
    assert report["models"]["target"]["stages"]["target: weights"] == "about a minute"
    assert len(report["models"]["target"]["notes"]) == 2


def test_forecast_checks_the_output_folder(large: Path, llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not empty"):
        forecast(large, out=tmp_path)
    forecast(llama, out=tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


def test_forecast_refuses_an_incompatible_pair(llama: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(llama, tmp_path / "other"))
    byte_fallback().save(str(other / "tokenizer.json"))
    with pytest.raises(IncompatiblePair, match="different tokenizers"):
        forecast(llama, other)


def test_dry_run_downloads_no_weights(hub: Hub, llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--target", "some/target", "--draft", "some/draft", "--dry-run"]) == 0
    assert hub.calls
    assert not hub.weights_downloaded
    assert "target: download" in capsys.readouterr().out
    assert forecast("some/target").models[0].download_nbytes == (llama / "model.safetensors").stat().st_size


def test_export_requires_out_without_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", "--target", "x"])
    assert caught.value.code == 2
    assert "the following arguments are required: --out" in capsys.readouterr().err


def test_forecast_includes_the_requested_steps(large: Path) -> None:
    plain = PairRequest(str(large), None, Path(), recipe(4))
    more = replace(
        plain, recipe=replace(recipe(4), calibrated=True), graphs=GraphRequest(("base", "hidden", "kv8")), gguf=True
    )
    titles = [[stage.title for stage in forecast_pair(request, out=None).models[0].stages] for request in (plain, more)]
    added = [title.removeprefix("target: ") for title in titles[1] if title not in titles[0]]
    assert added == ["calibration text", "calibration", "hidden graph", "kv8 graph", "gguf"]
    assert forecast_pair(more, out=None).nbytes > 1.9 * forecast_pair(plain, out=None).nbytes


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("9GB", ", of 9000.0 MB (EDGEDECODE_MEMORY)"),
        ("6GB", ": more than 6000.0 MB (EDGEDECODE_MEMORY), which is enough for about "),
        ("1GB", ": more than 1000.0 MB (EDGEDECODE_MEMORY) at any context; use fewer --bits or a smaller model"),
    ],
)
@pytest.mark.usefixtures("tables_too")
def test_dry_run_compares_the_memory_to_run_with_the_memory_available(
    limit: str, expected: str, large: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The KV cache of a 7B Llama has 2 x 32 layers x 4,096 numbers of 4 bytes per position: 4.3 GB for 4,096."""
    monkeypatch.setenv("EDGEDECODE_MEMORY", limit)
    found = forecast(large)
    assert found.running_nbytes(4096) - found.running_nbytes(0) == 4096 * 2 * 32 * 4096 * 4
    assert found.running_nbytes(10**9) == found.running_nbytes(4096)
    assert main(["export", "--target", str(large), "--bits", "4", "--no-mixed", "--dry-run", "--json"]) == 0
    printed = capsys.readouterr().out
    assert expected in printed
    assert json.loads(printed.splitlines()[-1])["running_nbytes"] == found.running_nbytes(4096)
