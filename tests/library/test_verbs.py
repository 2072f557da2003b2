"""The verbs `list`, `rm` and `demo`, and models that are named where they are used."""

import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import edgedecode
from edgedecode.apps import terminal
from edgedecode.apps.library.demo_command import DEMO_MODEL, read_prompts
from edgedecode.cli import main
from edgedecode.errors import ManifestError
from edgedecode.library import hub_files, offers
from edgedecode.library.find import find_pack
from edgedecode.library.offers import Offer, fetched
from edgedecode.library.prepared import is_in_use
from edgedecode.library.stores import stored_models
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.user_notices import ask_before_downloads
from tests.conftest import Refusal

from .conftest import Stores, listing, written

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
own_kernels = pytest.mark.skipif(tried() is None, reason="GGUF files need edgedecode's own kernels")
Made = Callable[..., bytes]


@pytest.fixture(autouse=True)
def one_context() -> Any:
    """Forget the question before downloads that a verb sets."""
    yield
    ask_before_downloads(None)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    assert main(["list", "--json", *words]) == 0
    return {model["name"]: model for model in json.loads(capsys.readouterr().out)["models"]}


@own_kernels
def test_list_tells_what_a_header_says(stores: Stores, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    stores.ollama("library/big:1", made("Q8_0"))
    stores.lm_studio("them/small-GGUF", "small-Q4_0.gguf", made("Q4_0", layers=1))
    stores.lm_studio("them/half-GGUF", "half-Q4_0.gguf", made("Q4_0")[:-3000])
    stores.ollama("library/gone:1", b"")
    before = listing(stores.home)
    found = listed(capsys)
    assert listing(stores.home) == before
    big, small = found["big:1"], found["them/small-GGUF:Q4_0"]
    assert (big["store"], big["weights"], big["context"], big["architecture"]) == ("Ollama", "Q8_0", 1024, "llama")
    assert (big["engines"][0], big["refused"], big["nbytes"]) == ("onnx", "", len(made("Q8_0")))
    assert big["tokenizer"] == small["tokenizer"] != ""
    assert not big["in_use"]
    assert not big["prepared"]
    assert "truncated or damaged" in found["them/half-GGUF:Q4_0"]["refused"]
    assert "is not there" in found["gone:1"]["refused"]
    assert listed(capsys) == found  # also from the cache
    assert main(["list", "--paths"]) == 0
    printed = capsys.readouterr().out
    assert "gone:1: refused: its manifest names" in printed
    assert f"big:1: {big['path']}" in printed


def test_list_names_drafts_of_the_same_tokenizer(
    stores: Stores, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    stores.ollama("library/big:1", made("Q8_0", layers=9))
    stores.ollama("library/small:1", made("Q8_0", layers=1))
    found = listed(capsys)
    assert found["big:1"]["drafts"] == ["small:1"]
    assert found["small:1"]["drafts"] == []


@own_kernels
def test_a_draft_is_named_beside_its_target(
    stores: Stores, made: Made, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    stores.ollama("library/big:1", made("Q8_0", layers=3))
    stores.ollama("library/small:1", made("Q8_0", layers=1))
    words = ["the fox", "-n", "24", "--temp", "0", "--runtime", "onnx"]
    assert main(["generate", "big:1", *words]) == 0
    plain = capsys.readouterr().out
    assert (
        main(["generate", "big:1", "--draft", "small", *words, "--draft-max", "3", "--drafter", "model", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["text"] + "\n" == plain
    assert found["stats"]["proposed"] > 0
    assert "no model 'nothing'" in refusal("generate", "big:1", "--draft", "nothing", *words)


def test_list_of_a_folder(home: Path, made: Made, capsys: pytest.CaptureFixture[str], refusal: Refusal) -> None:
    written(home / "here" / "deep" / "a.gguf", made())
    written(home / "here" / "a.gguf", made("Q4_0"))
    found = listed(capsys, "here")
    assert {*found} == {"here/a.gguf", "here/deep/a.gguf"}
    assert [find_pack(name).name[:2] for name in found] == ["a-", "a-"]
    assert "there is no folder 'nowhere'" in refusal("list", "nowhere")
    assert "is a file" in refusal("list", "here/deep/a.gguf")
    assert main(["list"]) == 0
    assert "edgedecode pull" in capsys.readouterr().out


def test_list_passes_over_folders_that_cannot_be_read(
    home: Path, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(home / "here" / "a.gguf", made())
    written(home / "here" / "locked" / "b.gguf", made())
    scan = os.scandir

    def refused(path: Any) -> Any:
        if Path(path).name == "locked":
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert {*listed(capsys, "here")} == {"here/a.gguf"}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("", "names nothing to download"),
        ("here", "'here' is a file or a folder here"),
        ("nofile.gguf", "names nothing to download"),
        ("demo", "the bundled pack"),
    ],
)
def test_pull_asks_no_index_for_a_path(
    word: str, said: str, home: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr(offers, "fetched", Mock(side_effect=AssertionError("the index was asked")))
    (home / "here").mkdir()
    assert said in refusal("pull", word)


def test_rm_names_only_models_of_the_library(home: Path, refusal: Refusal) -> None:
    assert not (home / "absent").exists()
    assert "it is empty" in refusal("rm", DEMO_MODEL)
    (home / "a.gguf").touch()
    assert "'a.gguf' is a file or a folder of yours, and is left as it is" in refusal("rm", "a.gguf")
    assert (home / "a.gguf").exists()


def test_import_and_export_know_the_names_of_list(
    stores: Stores, made: Made, home: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    stores.lm_studio("them/tiny-GGUF", "tiny-Q8_0.gguf", made())
    assert main(["import", "--target", "tiny-GG", "--out", str(home / "out")]) == 0
    assert Manifest.load(home / "out").models["target"].gguf.endswith("tiny-Q8_0.gguf")
    capsys.readouterr()
    assert "did you mean them/tiny-GGUF:Q8_0?" in refusal(
        "import", "--target", "tyny-GGUF", "--out", str(home / "other")
    )
    assert "tiny-GGUF is a model of `edgedecode list`, which runs as it is" in refusal(
        "export", "--target", "tiny-GGUF", "--out", str(home / "other")
    )
    assert not (home / "other").exists()


def test_a_cache_that_cannot_be_written_names_the_way_out(
    home: Path, made: Made, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(home / "a.gguf", made())
    file = written(home / "file", b"")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(file))
    for words in (["generate", str(model), "hi"], ["pull", DEMO_MODEL]):
        assert main(words) == 1
        err = capsys.readouterr().err
        assert "Not a directory" in err
        assert "EDGEDECODE_CACHE" in err


def test_names_of_files_cannot_control_the_terminal(home: Path, made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    written(home / "here" / "[red]a\x1b[31m.gguf", made())
    assert main(["list", "here", "--paths"]) == 0
    printed = capsys.readouterr().out
    assert "[red]a" in printed
    assert "\x1b" not in printed


@own_kernels
def test_a_named_model_answers_and_is_then_prepared(
    stores: Stores, made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    stores.ollama("library/tiny:135m", made())
    words = ["the fox", "-n", "4", "--temp", "0", "--runtime", "onnx"]
    assert main(["generate", "tiny:135m", *words]) == 0
    answer = capsys.readouterr().out
    assert main(["generate", "-m", "tiny", *words]) == 0
    assert capsys.readouterr().out == answer != ""
    assert listed(capsys)["tiny:135m"]["prepared"]
    with edgedecode.load("tiny:135m", runtime="onnx"):
        assert listed(capsys)["tiny:135m"]["in_use"]
    assert not listed(capsys)["tiny:135m"]["in_use"]


@own_kernels
def test_rm_removes_what_was_pulled_and_prepared(
    stores: Stores, made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    library = tmp_path / "cache" / "models"
    path = written(library / "owner--tiny" / "sub" / "tiny-Q8_0.gguf", made())
    other = written(library / "owner--tiny" / "tiny-Q4_0.gguf", made("Q4_0"))
    theirs = stores.ollama("library/theirs:1", made("Q8_0", seed=9))
    with edgedecode.load("owner/tiny:Q8_0", runtime="onnx") as pair:
        (model,) = [model for model in stored_models() if model.path == path]
        assert is_in_use(model)
        assert "owner/tiny:Q8_0 is in use" in refusal("rm", "owner/tiny:Q8_0")
        root = pair.root
    assert list((tmp_path / "cache" / "tiles").iterdir())
    assert main(["rm", "owner/tiny:Q8_0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == str(path)
    assert not path.parent.exists()
    assert not root.exists()
    assert list((tmp_path / "cache" / "tiles").iterdir()) == []
    assert other.is_file()
    assert "was not pulled, and is left as it is" in refusal("rm", "theirs:1")
    assert theirs.is_file()
    for name, message in (("demo", "belongs to the installation"), ("tny", "it has owner/tiny:Q4_0")):
        assert message in refusal("rm", name)


def _cut(path: Path) -> None:
    os.truncate(path, 100)


def _replace(path: Path) -> None:
    path.with_name("new").write_bytes(b"another model")
    path.with_name("new").replace(path)


@own_kernels
@pytest.mark.parametrize("change", [Path.unlink, _cut, _replace])
def test_a_model_whose_file_changes_while_it_runs_goes_on(
    change: Callable[[Path], None], stores: Stores, made: Made
) -> None:
    path = stores.lm_studio("them/tiny-GGUF", "tiny-Q8_0.gguf", made())
    options = edgedecode.SessionOptions(seed=1)
    with edgedecode.load("tiny-Q8_0", runtime="onnx") as pair:
        with pair.session(options) as session:
            first = session.generate("the fox", max_tokens=4).tokens
        change(path)
        with pair.session(options) as session:
            assert session.generate("the fox", max_tokens=4).tokens == first
    with pytest.raises(ManifestError, match=r"no model 'tiny-Q8_0'|is truncated|is not a GGUF file"):
        edgedecode.load("tiny-Q8_0")


@pytest.mark.parametrize(("typed", "agreed"), [("\n", True), ("y\n", True), ("n\n", False), ("", False)])
def test_a_terminal_is_asked_before_a_download(
    typed: str, agreed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(typed))
    monkeypatch.setattr("sys.stderr", told := Terminal())
    terminal.show_notices()
    offer = Offer("owner/m:Q4_K_M", 105_000_000, lambda: tmp_path, "Q4_K_M of Q4_K_M, Q8_0")
    if agreed:
        assert fetched(offer) == tmp_path
    else:
        with pytest.raises(ManifestError, match="was not downloaded"):
            fetched(offer)
    assert told.getvalue().startswith("owner/m:Q4_K_M, 105 MB (Q4_K_M of Q4_K_M, Q8_0) is not here. Download it? [Y/n]")


def test_a_pipe_is_told_of_a_download(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    offered = Offer("owner/m", 5_000_000, lambda: home / "no.gguf")
    monkeypatch.setattr(hub_files, "hub_offer", lambda _: offered)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"hi"), isatty=lambda: False))
    assert main(["generate", "owner/m", "hi"]) == 1
    assert "edgedecode: downloading owner/m, 5 MB" in capsys.readouterr().err


def test_the_demo_serves_the_bundled_pack_and_says_why(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(home))
    assert main(["demo", "-n", "4", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["model"] == "demo"
    assert {*found["prompts"]} == {*read_prompts()}
    assert all(each["same_text"] and each["tokens"] <= 4 for each in found["prompts"].values())
    assert f"the bundled toy serves instead of {DEMO_MODEL}: the package {DEMO_MODEL} could not be" in captured.err


@own_kernels
def test_the_demo_compares_both_ways_on_the_model(
    stores: Stores, made: Made, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written(tmp_path / "cache" / "models" / DEMO_MODEL / "tiny.gguf", made())
    assert main(["demo", "-n", "4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tiny, on the processor, greedy")
    rows = [line for line in printed.splitlines() if line.rstrip().endswith("yes")]
    assert len(rows) == len(read_prompts()) == 8
