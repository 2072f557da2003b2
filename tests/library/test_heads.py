"""A drafting head of the hub is pulled into the library, listed, added to a pack by its name, and removed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

from edgedecode.export.heads.shipped import weights_digest
from edgedecode.library.find import find_pack
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.heads.written import TinyHead, write_flat, write_gguf
from tests.imports.files import HIDDEN

from .conftest import HubServer, Say, written

pytestmark = pytest.mark.export
own_kernels = pytest.mark.skipif(tried() is None, reason="GGUF files need edgedecode's own kernels")
NAME = "owner/EAGLE3-tiny"
TARGET = Manifest.load(BUNDLED_PACK).models["target"]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Return the files of a head's repository."""
    folder = write_flat(tmp_path / "head", TinyHead.of(TARGET, rows=256))
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    (folder / "train.py").write_text("raise SystemExit")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_head_is_pulled_added_by_name_and_removed(
    server: HubServer, say: Say, files: dict[str, bytes], tmp_path: Path
) -> None:
    server.files[NAME] = files
    done = say("pull", NAME)
    assert done.returncode == 0, done.stderr
    assert f"a drafting head: `edgedecode head add PACK {NAME}`" in done.stderr
    library = tmp_path / "cache" / "models" / "owner--EAGLE3-tiny"
    assert {path.name for path in library.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    listed = json.loads(say("list", "--json").stdout)["models"]
    assert [(model["name"], "drafting head" in model["refused"]) for model in listed] == [(NAME, True)]
    pack = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, pack)
    done = say("head", "add", str(pack), NAME)
    assert done.returncode == 0, done.stderr
    entry = Manifest.load(pack).head
    assert entry is not None
    assert (entry.rows, entry.license) == (256, "cc-by-nc-4.0")
    assert say("rm", NAME).returncode == 0
    assert not library.exists()
    assert say("head", "add", str(pack), NAME).returncode == 1


def test_a_head_that_is_named_as_a_model_is_refused_in_one_line(
    server: HubServer, say: Say, files: dict[str, bytes]
) -> None:
    server.files[NAME] = files
    for pulled in (False, True):
        assert not pulled or say("pull", NAME).returncode == 0
        done = say("generate", "-m", NAME, "hello")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert f"a drafting head, which no command runs alone: `edgedecode head add PACK {NAME}`" in done.stderr


def test_a_checkpoint_is_no_head_and_half_a_head_is_none(server: HubServer, say: Say, files: dict[str, bytes]) -> None:
    plain = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    for config in (json.dumps(plain).encode(), b"[", b""):
        server.files[NAME] = files | {"config.json": config}
        done = say("pull", NAME)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert "has no GGUF file" in done.stderr
    server.files[NAME] = files
    server.digests["config.json"] = "0" * 64
    done = say("pull", NAME)
    assert done.returncode == 1
    assert "its digest differs" in done.stderr.splitlines()[-1]
    assert json.loads(say("list", "--json").stdout)["models"] == []


@own_kernels
def test_a_file_that_lies_anywhere_takes_a_head(say: Say, made: Callable[..., bytes], home: Path) -> None:
    model = written(home / "a folder" / "tiny-Q8_0.gguf", made(layers=8))
    source = write_flat(home / "head", TinyHead(HIDDEN, HIDDEN, vocabulary=323, rows=64))
    done = say("head", "add", str(model), str(source))
    assert done.returncode == 0, done.stderr
    assert "64 ids, reads the inputs of layers 2, 4, 5" in say("head", "list", str(model)).stdout
    words = ("generate", "-m", str(model), "--temp", "0", "-n", "12", "--ignore-eos", "the fox", "--drafter")
    texts = [say(*words, *drafter) for drafter in (("none",), ("head", "--draft-max", "2"))]
    assert [done.returncode for done in texts] == [0, 0], texts[-1].stderr
    assert texts[0].stdout == texts[1].stdout
    assert say("head", "remove", str(model)).returncode == 0
    assert "has no drafting head" in say("head", "list", str(model)).stdout
    assert [path.name for path in model.parent.iterdir()] == [model.name]


@pytest.mark.parametrize("name", ["tiny-eagle3-Q8_0", "owner/tiny-eagle3:Q8_0"])
def test_a_file_of_a_head_is_named_as_a_model_is(name: str, say: Say, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models" / "owner--tiny-eagle3"
    write_gguf(folder, TinyHead.of(TARGET, rows=256), name="tiny-eagle3-Q8_0.gguf")
    (listed,) = json.loads(say("list", "--json").stdout)["models"]
    assert "a drafting head, which no command runs alone" in listed["refused"]
    done = say("generate", "-m", name, "hello")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"`edgedecode head add PACK {folder / 'tiny-eagle3-Q8_0.gguf'}`" in done.stderr
    shutil.copytree(BUNDLED_PACK, tmp_path / "pack")
    done = say("head", "add", str(tmp_path / "pack"), name)
    assert done.returncode == 0, done.stderr
    entry = Manifest.load(tmp_path / "pack").head
    assert entry is not None
    assert entry.rows == 256


def test_a_head_that_comes_with_the_program_is_found_by_the_models_norms(
    made: Callable[..., bytes], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(home / "tiny-Q8_0.gguf", made(layers=8))
    same = written(home / "tiny-F16.gguf", made("F16", layers=8))
    other = written(home / "other-Q8_0.gguf", made(layers=7))
    assert weights_digest(model) == weights_digest(same) != weights_digest(other)
    head = TinyHead(HIDDEN, HIDDEN, vocabulary=323, rows=64)
    write_gguf(home / "shipped", head, name=f"{weights_digest(model)[:16]}.gguf")
    monkeypatch.setattr("edgedecode.export.heads.shipped._FOLDER", home / "shipped")
    for path, found in ((model, True), (same, True), (other, False)):
        assert (Manifest.load(find_pack(path)).head is not None) == found, path
