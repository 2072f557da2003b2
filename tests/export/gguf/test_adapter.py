"""LoRA adapters in stock llama.cpp compute what transformers computes with the delta in its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.errors import CapabilityError, ExportError
from edgedecode.export.base_model import open_source
from edgedecode.export.gguf.peft_adapter import write_adapter
from edgedecode.pack.manifest import Manifest
from tests.export.test_architectures import SHAPES, random_tokens
from tests.export.tiny import TinyModel, write_model
from tests.shared_paths import SHARED

from .stock import stock_logits
from .test_stock import EXACT
from .writing import export_gguf, needs_engine, value_of

pytestmark = pytest.mark.export

DEMO = SHARED / "demo-pair"
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
FUSED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def random_adapter(folder: Path, model: Path, *, modules: tuple[str, ...] = MODULES, **config: object) -> Path:
    """Write a PEFT folder with random matrices for these modules of every layer."""
    from safetensors.numpy import load_file, save_file

    numbers = np.random.default_rng(5)
    rank = 4
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if any(f"{module}.weight" in name for module in modules):
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{stem}.lora_A.weight"] = numbers.standard_normal((rank, weight.shape[1])).astype(np.float32) * 0.2
            tensors[f"{stem}.lora_B.weight"] = numbers.standard_normal((weight.shape[0], rank)).astype(np.float32) * 0.2
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 6, "bias": "none", **config}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def adapted_logits(model: Path, adapter: Path, tokens: list[int], *, scale_of: Mapping[str, float]) -> FloatArray:
    """Run transformers with the delta added to its weights; `scale_of` a module by its last name."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype="float32", attn_implementation="eager")
    tensors = {name: tensor.float() for name, tensor in load_file(adapter / "adapter_model.safetensors").items()}
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            stem = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{stem}.lora_A.weight" in tensors:
                delta = tensors[f"{stem}.lora_B.weight"] @ tensors[f"{stem}.lora_A.weight"]
                parameter += scale_of.get(stem.rsplit(".", 1)[-1], scale_of[""]) * delta
        logits: FloatArray = network(torch.tensor([tokens])).logits[0].numpy()
    return logits


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3", "smollm3", "granite"])
@needs_engine
def test_adapters_of_architectures(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SHAPES.get(family, TinyModel()))
    manifest = export_gguf(model, tmp_path / "pack")
    modules = FUSED if family == "phi3" else MODULES
    adapter = random_adapter(tmp_path / "adapter", model, modules=modules)
    write_adapter(adapter, tmp_path / "adapter.gguf", shape=open_source(str(model)).shape)
    tokens = random_tokens(24)
    expected = adapted_logits(model, adapter, tokens, scale_of={"": 1.5})
    file = tmp_path / "pack" / manifest.models["target"].gguf
    plain = stock_logits(file, tokens)
    assert np.abs(expected - plain).max() > 0.1
    assert np.abs(stock_logits(file, tokens, [tmp_path / "adapter.gguf"]) - expected).max() < 5 * EXACT
    assert np.abs(stock_logits(file, tokens, [tmp_path / "adapter.gguf"], scale=0.0) - plain).max() < EXACT


@pytest.mark.parametrize(
    ("config", "scale_of"),
    [
        ({"use_rslora": True}, {"": 3.0}),
        ({"alpha_pattern": {"q_proj": 2}}, {"": 1.5, "q_proj": 0.5}),
        ({"lora_alpha": 4, "alora_invocation_tokens": [1, 7, 9]}, {"": 1.0}),
    ],
)
@needs_engine
def test_scales(config: dict[str, object], scale_of: Mapping[str, float], tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    manifest = export_gguf(model, tmp_path / "pack")
    adapter = random_adapter(tmp_path / "adapter", model, **config)
    path = tmp_path / "adapter.gguf"
    write_adapter(adapter, path, shape=open_source(str(model)).shape)
    tokens = random_tokens(24)
    expected = adapted_logits(model, adapter, tokens, scale_of=scale_of)
    file = tmp_path / "pack" / manifest.models["target"].gguf
    assert np.abs(stock_logits(file, tokens, [path]) - expected).max() < 5 * EXACT
    assert value_of(path, "adapter.alora.invocation_tokens") == config.get("alora_invocation_tokens")


@pytest.mark.parametrize("name", ["formal", "reasoning"])
@needs_engine
def test_demo_adapters(name: str, tmp_path: Path) -> None:
    if not DEMO.is_dir():
        pytest.skip("the demo pair is not here")
    manifest = export_gguf(DEMO / "target", tmp_path / "pack")
    path = tmp_path / "adapter.gguf"
    write_adapter(DEMO / "adapters" / name, path, shape=open_source(str(DEMO / "target")).shape)
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 8000, 60)]
    expected = adapted_logits(DEMO / "target", DEMO / "adapters" / name, tokens, scale_of={"": 2.0})
    file = tmp_path / "pack" / manifest.models["target"].gguf
    found = stock_logits(file, tokens, [path])
    assert np.abs(found - stock_logits(file, tokens)).max() > 0.1
    assert np.abs(found - expected).max() < 1e-3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "of type IA3, only LORA"),
        ({"use_dora": True}, "uses use_dora, which llama.cpp does not know"),
        ({"r": 0}, "r"),
    ],
)
def test_other_adapters_are_refused(config: dict[str, object], message: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    adapter = random_adapter(tmp_path / "adapter", model, **config)
    with pytest.raises(ExportError, match=message):
        write_adapter(adapter, tmp_path / "adapter.gguf", shape=open_source(str(model)).shape)


def test_what_is_no_adapter_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    shape = open_source(str(model)).shape
    with pytest.raises(ExportError, match=r"is not a PEFT adapter: it has no adapter_config\.json"):
        write_adapter(model, tmp_path / "adapter.gguf", shape=shape)
    head = random_adapter(tmp_path / "adapter", model, modules=("lm_head",))
    with pytest.raises(ExportError, match=r"changes base_model\.model\.lm_head\.lora_A\.weight"):
        write_adapter(head, tmp_path / "adapter.gguf", shape=shape)


def exported(model: Path, pack: Path, *more: str) -> int:
    words = ["export", "--target", str(model), "--out", str(pack), "--noise-positions", "0", "--no-cache"]
    return main([*words, "--bits", "8", *more])


@needs_engine
def test_an_exported_pack_decodes_with_it(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model)
    assert exported(model, tmp_path / "pack", "--formats", "onnx,gguf", "--adapter", f"formal={folder}") == 0
    manifest = Manifest.load(tmp_path / "pack")
    entry = manifest.adapters["formal"]
    assert (entry.file, entry.role, entry.rank, entry.alpha) == ("adapters/formal.gguf", "target", 4, 6.0)
    assert set(entry.modules) == {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}
    assert entry.file in manifest.files
    said = []
    for adapter in (None, "formal"):
        options = SessionOptions(sampling=SamplingOptions(), adapter=adapter, ignore_eos=True)
        with edgedecode.load(tmp_path / "pack", runtime="llama") as pair, pair.session(options) as session:
            said.append(session.generate("the fox", max_tokens=24).tokens)
    assert said[0] != said[1]
    with pytest.raises(CapabilityError, match=r"engine onnx does not take: use --runtime llama"):
        edgedecode.load(tmp_path / "pack", runtime="onnx").session(SessionOptions(adapter="formal"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TinyModel(layers=3), "changes model.layers.2.mlp.down_proj, which the model has not; it is for another base"),
        (TinyModel(mlp=128), "peft changes blk.0.ffn_down.weight by 128×4 and 4×64, in the model target it is 96×64"),
    ],
)
def test_an_adapter_of_another_base_leaves_nothing(
    other: TinyModel, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", write_model(tmp_path / "other", other))
    assert exported(model, tmp_path / "pack", "--formats", "onnx,gguf", "--adapter", f"formal={folder}") == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other", "peft"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--adapter", "a=b"], "add --formats onnx,gguf"),
        (["--formats", "onnx,gguf", "--adapter", "a=b", "--adapter", "a=c"], "the name 'a' is given twice"),
        (["--adapter", "b"], "is not NAME=PATH"),
        (["--exporter", "optimum", "--adapter", "a=b"], "--exporter: optimum does not take --adapter"),
        (["--exporter", "optimum", "--imatrix-text", "b"], "--exporter: optimum does not take --imatrix-text"),
        (["--compare", "--adapter", "a=b"], "--adapter"),
        (["--compare", "--imatrix", "b"], "--imatrix"),
    ],
)
def test_options_that_do_not_go_together(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", "--target", "x", *([] if "--compare" in more else ["--out", "pack"]), *more])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_looks_at_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    words = ["export", "--target", str(model), "--dry-run", "--formats", "onnx,gguf", "--adapter", f"a={model}"]
    assert main(words) == 1
    assert "is not a PEFT adapter" in capsys.readouterr().err
