"""A GGUF file built from a pack's plan is equal, byte for byte, to the exported file."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from edgedecode.errors import ManifestError
from edgedecode.export.gguf import maker
from edgedecode.export.gguf.maker import GgufMaker
from edgedecode.export.gguf.plan import GgufPlan
from edgedecode.export.graph.recipe import Recipe
from edgedecode.pack.manifest import Manifest
from tests.export.conftest import export, recipe
from tests.export.shapes import LONG
from tests.export.tiny import TinyModel, write_model

from .writing import GGUF_SHAPES, export_gguf

pytestmark = pytest.mark.export

MODELS = {
    **{name: GGUF_SHAPES[name] for name in ("llama", "mistral", "phi3", "gemma2", "qwen3", "smollm3")},
    "qwen2": GGUF_SHAPES["qwen2"],
    "llama biases": TinyModel(more={"attention_bias": True, "mlp_bias": True}),
    "long rope": LONG,
}
"""Reordered rows, biases, fused projections, shifted norms, scaled queries and tensors of rope factors."""
_Damage = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(("name", "bits"), [(name, 4) for name in MODELS] + [("llama", 8), ("qwen2", 8)], ids=str)
def test_gguf_plan_builds_the_exported_file(name: str, bits: int, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", MODELS[name])
    stored = recipe(bits)
    exported = export_gguf(model, tmp_path / "both", stored=stored).models["target"]
    entry = export(model, tmp_path / "planned", stored=stored).models["target"]
    assert (exported.gguf, exported.gguf_plan) == ("target/model.gguf", "")
    assert (entry.gguf, entry.gguf_plan) == ("", "target/gguf.json")
    built = tmp_path / "built.gguf"
    GgufMaker().make(entry, tmp_path / "planned", built)
    assert built.read_bytes() == (tmp_path / "both" / exported.gguf).read_bytes()
    assert not list((tmp_path / "planned").rglob("*.gguf"))


@pytest.mark.parametrize("stored", [recipe(16), recipe(4, block_size=16)], ids=["floats", "blocks of 16"])
def test_gguf_plan_is_omitted_for_schemes_without_a_ggml_type(stored: Recipe, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    entry = export(model, tmp_path / "pack", stored=stored).models["target"]
    assert entry.gguf_plan == ""
    assert not (tmp_path / "pack" / "target" / "gguf.json").exists()


def test_gguf_plan_is_omitted_if_llama_cpp_computes_differently(tmp_path: Path) -> None:
    """With --formats gguf this model is refused; without it, only the plan is omitted."""
    model = write_model(tmp_path / "model", TinyModel(more={"hidden_act": "gelu"}))
    assert export(model, tmp_path / "pack", stored=recipe(4)).models["target"].gguf_plan == ""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    export(write_model(folder / "model", TinyModel()), folder / "pack", stored=recipe(4))
    return folder / "pack"


def test_gguf_plan_builds_without_frameworks(planned: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edgedecode.engines.registry import find_maker; "
        "from edgedecode.pack.manifest import Manifest; root = Path(sys.argv[1]); "
        "find_maker('gguf').make(Manifest.load(root).models['target'], root, Path(sys.argv[2])); "
        "print(sorted({'torch', 'transformers', 'onnx', 'onnx_ir', 'onnxruntime', 'safetensors'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(planned), str(tmp_path / "built.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    assert (tmp_path / "built.gguf").stat().st_size > 10_000


def first(value: dict[str, Any], kind: str) -> dict[str, Any]:
    tensor: dict[str, Any] = next(each for each in value["tensors"].values() if each["type"] == kind)
    return tensor


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda value: value.update(version=2), "has version 2.*upgrade"),
        (lambda value: value.pop("rows"), "missing required field rows"),
        (lambda value: first(value, "Q4_0").update(packed=[10**9]), "does not fit the weights file"),
        (lambda value: first(value, "Q4_0").update(rows=[3]), "does not fit the weights file"),
        (lambda value: first(value, "Q4_0").update(scales=[]), "rows, packed and scales have different lengths"),
        (lambda value: first(value, "Q4_0").update(head=7), "does not fit the weights file"),
        (lambda value: first(value, "Q4_0").update(type="Q9_9"), "of type Q9_9"),
        (lambda value: first(value, "F32").update(offset=10**9), "does not fit the weights file"),
        (lambda value: first(value, "F32").update(offset=-4), ">= 0"),
        (lambda value: [first(value, "F32").pop("offset"), first(value, "F32").update(values="AAAA")], "does not fit"),
        (lambda value: [first(value, "F32").pop("offset"), first(value, "F32").update(values="?")], "valid base64"),
        (lambda value: value["keys"].update({"llama.block_count": {"type": 99, "value": 1}}), "<= 12"),
        (lambda value: value["keys"].update({"llama.block_count": {"type": 4, "value": "two"}}), "is damaged"),
        (lambda value: value["keys"].update({"llama.block_count": None}), "'llama.block_count' is no name"),
        (lambda value: value["keys"].update({"a\ud800": {"type": 4, "value": 1}}), "is no name"),
        (lambda value: value["keys"].update({"a": {"type": 8, "value": "\ud800"}}), "is damaged"),
        (lambda value: value["keys"].update({"a": {"type": 8, "value": 1}}), "is damaged"),
        (lambda value: value["keys"].update({"a": {"type": 6, "value": 1e300}}), "is damaged"),
        (lambda value: value["keys"].update({"a": {"type": 9, "value": 1}}), "is damaged"),
        (lambda value: value["keys"].update({"a": {"type": 9, "value": []}}), "is damaged"),
        (lambda value: value["keys"].update({"a": {"type": 9, "value": [1], "element": 8}}), "is damaged"),
        (lambda value: value.update(rows=2**50), f"is for {2**50} rows, not 352"),
        (lambda value: first(value, "F32").update(shape=[0]), ">= 1"),
        (lambda value: first(value, "F32").update(shape=[1] * 5), "length <= 4"),
        (lambda value: first(value, "F32").update(shape=[2**32, 2**32]), "does not fit the weights file"),
        (lambda value: value["keys"].update({"llama.block_count": {"type": 4}}), "missing required field value"),
    ],
)
def test_gguf_plan_that_is_damaged_is_refused(damage: _Damage, message: str, planned: Path, tmp_path: Path) -> None:
    """This includes malicious plans: nothing outside the weights file is read."""
    from shutil import copytree

    root = tmp_path / "pack"
    copytree(planned, root)
    path = root / "target" / "gguf.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    damage(value)
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(ManifestError, match=message):
        GgufMaker().make(Manifest.load(root).models["target"], root, tmp_path / "built.gguf")


def test_an_error_in_our_own_code_is_not_taken_for_damage(
    planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Manifest.load(planned).models["target"]
    for name in ("write_file", "encoded_field", "read_vocabulary"):  # each runs before the one in front of it
        monkeypatch.setattr(maker, name, Mock(side_effect=TypeError("our own")))
        with pytest.raises(TypeError, match="our own"):
            GgufMaker().make(entry, planned, tmp_path / "built.gguf")


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000])
def test_gguf_plan_load_refuses_invalid_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "gguf.json").write_text(text)
    with pytest.raises(ManifestError, match="GGUF plan"):
        GgufPlan.load(tmp_path / "gguf.json")
