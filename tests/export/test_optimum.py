"""`export --exporter optimum`: its environment and its refusals. An opt-in test creates the real environment."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

import edgedecode
from edgedecode.cli import main
from edgedecode.errors import RuntimeUnavailable
from edgedecode.export.imports.optimum import find_environment, readable_config
from edgedecode.pack.manifest import Manifest
from tests.optimum_layout import FOLDER

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pretend(cache: Path, script: str) -> None:
    """Put a fake program into the environment."""
    program = cache / "optimum" / "bin" / "optimum-cli"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


def test_readable_config_keeps_rotary_settings_for_older_transformers() -> None:
    new = {"hidden_size": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
    assert readable_config(dict(new))["rope_theta"] == 500000.0
    assert "rope_scaling" not in readable_config(dict(new))
    scaled = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
    assert readable_config(dict(scaled))["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert readable_config({"rope_theta": 5.0}) == {"rope_theta": 5.0}


def test_find_environment_without_consent_prints_the_commands(cache: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="--make-environment") as caught:
        find_environment(make=False)
    first, second = str(caught.value).partition("or run: ")[2].split(" && ")
    assert first.endswith(f"-m venv {cache / 'optimum'}")
    assert second.endswith("-m pip install 'torch==2.13.*' 'optimum-onnx[onnxruntime]==0.1.*'")
    assert not (cache / "optimum").exists()


def test_optimum_graphs_are_imported(
    llama: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the committed graph replaces optimum's output
    pretend(cache, f'echo "$@" > {tmp_path}/words\nfor out; do :; done\nmkdir "$out"\ncp {FOLDER}/model.onnx "$out"')
    words = ("--exporter", "optimum", "--noise-positions", "0", "--json")
    assert run("export", "--target", llama, "--out", tmp_path / "pack", *words) == 0
    assert json.loads(capsys.readouterr().out)["models"]["target"]["source"] == llama.name
    assert "export onnx --model " in (tmp_path / "words").read_text()
    assert "--task text-generation-with-past" in (tmp_path / "words").read_text()
    entry = Manifest.load(tmp_path / "pack").models["target"]
    assert (entry.license, entry.graphs["base"].capabilities) == ("mit", ("concat", "rows"))
    assert not Manifest.load(tmp_path / "pack").outside


def test_optimum_failure_is_one_line(
    llama: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(cache, "echo Traceback >&2\necho 'ValueError: unsupported architecture' >&2\nexit 1")
    assert run("export", "--exporter", "optimum", "--target", llama, "--out", tmp_path / "pack") == 1
    error = capsys.readouterr().err
    assert "optimum could not export the model: ValueError: unsupported architecture\n" in error
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("change_model", "message"),
    [
        (lambda model: (model / "config.json").write_text('{"auto_map": {"AutoModel": "x.Y"}}'), "its own Python code"),
        (lambda model: (model / "model.safetensors").rename(model / "pytorch_model.bin"), "only as pickle files"),
        (lambda model: (model / "config.json").unlink(), "has no config.json"),
    ],
)
def test_optimum_never_gets_code_or_pickles(
    change_model: object, message: str, llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    change_model(model)  # type: ignore[operator]
    assert run("export", "--exporter", "optimum", "--target", model, "--out", tmp_path / "pack") == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--exporter", "optimum", "--bits", "8"), "argument --exporter: optimum does not take --bits"),
        (("--exporter", "optimum", "--head-bits", "8"), "does not take --head-bits"),
        (("--make-environment",), "needs --exporter optimum"),
    ],
)
def test_optimum_refuses_bad_arguments(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run("export", "--target", "x", "--out", tmp_path / "pack", *words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.downloads
@pytest.mark.slow
@pytest.mark.skipif("EDGEDECODE_DOWNLOADS" not in os.environ, reason="set EDGEDECODE_DOWNLOADS=1 to allow downloads")
def test_optimum_in_its_real_environment(llama: Path, tmp_path: Path) -> None:
    words = ("--exporter", "optimum", "--make-environment", "--noise-positions", "0")
    assert run("export", "--target", llama, "--out", tmp_path / "pack", *words) == 0
    with edgedecode.load(tmp_path / "pack") as pair:
        assert pair.target.card.context == 256
        assert pair.session().generate("hello", max_tokens=8).tokens
