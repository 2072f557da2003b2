"""`head add`, `list` and `remove`: what a pack gets, and what it is refused with an unchanged pack."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file, save_file

from edgedecode import SessionOptions, load
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.errors import ExportError, ManifestError
from edgedecode.export.gguf.plan import GgufPlan
from edgedecode.export.gguf.row_source import BlockRows
from edgedecode.export.heads.layouts import read_head
from edgedecode.export.heads.own_table import without_table
from edgedecode.export.heads.target_rows import target_tensor, with_output
from edgedecode.gguf.header import EMBEDDING, OUTPUT
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.gate import check_pack
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.contract.toy_gguf import GGUF, write_toy_gguf
from tests.contract.toy_graph import ToyShape
from tests.export.tiny import TinyModel, write_model

from .written import TinyHead, write_flat, write_gguf, write_speculators

pytestmark = pytest.mark.export
TARGET = Manifest.load(BUNDLED_PACK).models["target"]
HEAD = TinyHead.of(TARGET, rows=256)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    shutil.copytree(BUNDLED_PACK, tmp_path / "pack")
    return tmp_path / "pack"


def test_a_head_is_added_listed_and_removed(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (pack / MANIFEST_NAME).read_text()
    assert main(["head", "list", str(pack)]) == 0
    assert "has no drafting head" in capsys.readouterr().out
    head = write_flat(tmp_path / "a head", HEAD)
    (head / "README.md").write_text("---\nlicense: cc-by-nc-4.0\x1b[31m\n---\n")
    assert main(["head", "add", str(pack), str(head)]) == 0
    said = capsys.readouterr().out
    assert "256 ids, reads the inputs of layers 2, 5, 7; licence: cc-by-nc-4.0\\x1b[31m" in said
    entry = check_pack(pack, full=True).head
    assert entry is not None
    assert (entry.bits, entry.rows, entry.taps, entry.license) == (8, 256, (2, 5, 7), "cc-by-nc-4.0\x1b[31m")
    assert main(["head", "list", str(pack), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "a head"
    assert main(["show", str(pack)]) == 0
    assert "cc-by-nc-4.0\\x1b[31m" in capsys.readouterr().out
    assert main(["head", "add", str(pack), str(head)]) == 1
    assert "remove it first" in capsys.readouterr().err
    assert main(["head", "remove", str(pack)]) == 0
    assert json.loads((pack / MANIFEST_NAME).read_text())["files"] == json.loads(before)["files"]
    assert check_pack(pack).head is None
    assert not (pack / "head").exists()
    assert main(["head", "remove", str(pack)]) == 1


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (replace(HEAD, hidden=64, target_hidden=64), "hidden states of 64 values, the target's have 256"),
        (replace(HEAD, vocabulary=TARGET.rows + 8), f"for {TARGET.rows + 8} ids, the target has {TARGET.rows}"),
        (replace(HEAD, layers=(2, 5, 11)), r"layers [2, 5, 11], the target has layers 1 to 9"),
        (replace(HEAD, layers=(2, 2, 5)), r"layers [2, 2, 5], the target has layers 1 to 9"),
    ],
    ids=["size", "vocabulary", "layers", "a layer twice"],
)
def test_a_head_of_another_target_is_refused_and_the_pack_unchanged(
    head: TinyHead, message: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()}
    assert main(["head", "add", str(pack), str(write_flat(tmp_path / "head", head))]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert before == {path: path.read_bytes() for path in pack.rglob("*") if path.is_file()}


def test_a_target_of_few_layers_and_a_folder_that_is_no_head_are_refused(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["head", "add", str(pack), str(pack)]) == 1
    assert "no config.json" in capsys.readouterr().err
    assert main(["head", "add", str(pack), str(tmp_path / "nothing")]) == 1
    assert "is no folder and no GGUF file" in capsys.readouterr().err
    value = json.loads((pack / MANIFEST_NAME).read_text())
    value["models"]["target"]["layers"] = 5
    (pack / MANIFEST_NAME).write_text(json.dumps(value))
    assert main(["head", "add", str(pack), str(write_flat(tmp_path / "head", HEAD))]) == 1
    assert "the target has 5 layers: heads are for targets of 6 or more" in capsys.readouterr().err


@pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
def test_a_head_with_another_verifiers_name_is_tried(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"verifier": {"name_or_path": "owner/Another-1B"}}
    head = write_speculators(tmp_path / "head", HEAD, speculators_config=other)
    assert main(["head", "add", str(pack), str(head), "--bits", "4"]) == 0
    said = capsys.readouterr()
    assert "it was trained for Another-1B" in said.out
    assert re.search(r"accepted of its first, second and third tokens: \d+%, \d+%, \d+%", said.out)
    assert "answering prompts with the head" in said.err
    entry = Manifest.load(pack).head
    assert entry is not None
    assert entry.bits == 4
    assert main(["head", "remove", str(pack)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("EDGEDECODE_KERNELS", "engine")
    assert main(["head", "add", str(pack), str(head)]) == 0
    assert "its acceptance cannot be measured here: " in capsys.readouterr().out
    assert main(["head", "remove", str(pack)]) == 0
    capsys.readouterr()
    monkeypatch.delenv("EDGEDECODE_KERNELS")
    assert main(["head", "add", str(pack), str(head), "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["accepted"]
    assert len(shares) == 3
    assert all(0 <= share < 0.5 for share in shares)  # a random head


def with_table(folder: Path, table: FloatArray) -> Path:
    """Write a head that has an embedding of its own."""
    tensors = load_file(write_flat(folder, HEAD) / "model.safetensors")
    tensors["embed_tokens.weight"] = torch.from_numpy(table)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["pack", "", "Q4_0", "Q8_0"])
def test_a_heads_own_embedding_is_compared_with_its_targets(kind: str, tmp_path: Path) -> None:
    if kind == "pack":
        root, target = BUNDLED_PACK, TARGET
        planned = GgufPlan.load(root / TARGET.gguf_plan).located(root / TARGET.weights)
        (rows,) = (tensor.rows for tensor in planned if tensor.name == EMBEDDING)
        assert isinstance(rows, BlockRows)
        table = rows.floats(0, TARGET.rows)
    else:
        shape = ToyShape(hidden=TARGET.hidden_size, rows=TARGET.rows)
        root, target = tmp_path, write_toy_gguf(tmp_path, shape, quantization=kind)
        (stored,) = (tensor for tensor in GGUFReader(tmp_path / GGUF).tensors if tensor.name == EMBEDDING)
        table = np.array(dequantize(stored.data, stored.tensor_type), np.float32)
    near = table + 0.02 * table.std() * np.random.default_rng(1).standard_normal(table.shape, np.float32)
    for name, own, is_other in (("same", near, False), ("other", table[::-1].copy(), True)):
        head, note, other = without_table(read_head(with_table(tmp_path / name, own)), target, root)
        assert EMBEDDING not in head.tensors
        assert other is is_other
        assert ("which are the same" in note) is not is_other
        assert ("are not the target's" in note) is is_other
    (note,) = {without_table(read_head(tmp_path / "same"), replace(target, gguf="", gguf_plan=""), root)[1]}
    assert "not compared" in note


@pytest.mark.parametrize("kind", ["pack", "", "Q8_0"])
def test_a_head_without_rows_of_its_own_has_its_targets(kind: str, tmp_path: Path) -> None:
    shape = ToyShape(hidden=TARGET.hidden_size, rows=TARGET.rows)
    root, target = (
        (BUNDLED_PACK, TARGET) if kind == "pack" else (tmp_path, write_toy_gguf(tmp_path, shape, quantization=kind))
    )
    head = with_output(read_head(write_gguf(tmp_path / "head", HEAD, output=False)), target, root)
    assert head.ids is not None
    assert not head.shape.tied
    matrix = target_tensor(target, root, OUTPUT, EMBEDDING)
    assert matrix is not None
    assert head.tensors[OUTPUT].shape == (256, TARGET.hidden_size)
    assert head.tensors[OUTPUT].kind == matrix.kind
    assert np.array_equal(head.tensors[OUTPUT].read(), matrix.read()[head.ids])
    with pytest.raises(ExportError, match="uses its target's output, and the pack does not say"):
        with_output(read_head(tmp_path / "head" / "head.gguf"), replace(target, gguf="", gguf_plan=""), root)


@pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
def test_a_head_with_its_targets_rows_drafts(pack: Path, tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "head", HEAD, output=False)
    assert main(["head", "add", str(pack), str(source)]) == 0
    entry = check_pack(pack, full=True).head
    assert entry is not None
    assert entry.rows == 256
    with load(pack) as pair, pair.session(SessionOptions(drafter="head", draft_max=2)) as session:
        session.generate("Tell me a story.", max_tokens=12)
        assert session.stats.proposed


def test_a_changed_head_is_refused_when_the_pack_is_opened(pack: Path, tmp_path: Path) -> None:
    assert main(["head", "add", str(pack), str(write_flat(tmp_path / "head", HEAD))]) == 0
    value = json.loads((pack / MANIFEST_NAME).read_text())
    changes = {
        "other sizes": ({"rows": 300}, {"taps": [2, 5]}, {"hidden_size": 128}),
        r"reads layers \[2, 5, 30\]": ({"taps": [2, 5, 30]},),
    }
    for message, change in ((message, each) for message, listed in changes.items() for each in listed):
        changed = {**value, "head": {**value["head"], **change}}
        (pack / MANIFEST_NAME).write_text(json.dumps(changed))
        with pytest.raises(ManifestError, match=message):
            check_pack(pack)


def test_export_adds_a_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", TinyModel(layers=8, tied=True))
    small = TinyHead(vocabulary=323, layers=(2, 4, 5))  # the ids of its tokenizer
    words = ["export", "--target", str(model), "--bits", "8", "--activations", "8", "--out", str(tmp_path / "out")]
    assert main([*words, "--head", str(write_flat(tmp_path / "other", replace(small, hidden=96)))]) == 1
    assert "hidden states of 96 values" in capsys.readouterr().err
    assert Manifest.load(tmp_path / "out").head is None
    shutil.rmtree(tmp_path / "out")
    assert main([*words, "--head", str(tmp_path / "nothing")]) == 1
    assert not (tmp_path / "out").exists()
    assert main([*words, "--head", str(write_flat(tmp_path / "head", small))]) == 0
    entry = Manifest.load(tmp_path / "out").head
    assert entry is not None
    assert entry.taps == (2, 4, 5)
