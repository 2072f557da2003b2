"""Adapters of exported packs: both engines match transformers with the delta merged into the weights."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions
from edgedecode.adapters.adapter_change import add_adapter
from edgedecode.adapters.peft_folder import read_peft_adapter
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.decoding.model import AdapterModel, AdapterUse
from edgedecode.errors import EdgeDecodeError
from edgedecode.export.graph.graph_request import GraphRequest
from edgedecode.pack.manifest import Manifest
from tests.export.conftest import export, random_tokens, recipe
from tests.export.gguf.test_stock import EXACT
from tests.export.shapes import SHAPES
from tests.export.tiny import TinyModel, write_model
from tests.hub import Hub, check_download
from tests.shared_paths import SHARED

pytestmark = pytest.mark.export

DEMO = SHARED / "demo-pair"
MODULES = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
FUSED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")


def random_adapter(
    folder: Path, model: Path, *, modules: tuple[str, ...] = MODULES, rank: int = 4, **config: object
) -> Path:
    """Write a PEFT folder with random matrices for these modules of every layer."""
    from safetensors.numpy import load_file, save_file

    numbers = np.random.default_rng(5)
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
    """Run transformers with the delta added to its weights, scaled by `scale_of` the module's last name."""
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


def export_floats(model: Path, pack: Path, adapter: Path) -> Manifest:
    """Export a model in float32 for both engines, and add an adapter `a`."""
    export(model, pack, stored=recipe(32), gguf=True, graphs=GraphRequest(("base", "lora")))
    add_adapter(pack, "a", adapter)
    return Manifest.load(pack)


def logits_of(pack: Path, runtime: str, tokens: list[int], *, scale: float | None) -> FloatArray:
    """Return a text's logits with the pack's adapter `a` times `scale`; None: without the adapter."""
    with edgedecode.load(pack, runtime=runtime, adapters=True) as pair:
        target = pair.target
        assert isinstance(target, AdapterModel)
        folder = pack / "adapters" / "a"
        adapter = read_peft_adapter(folder / "adapter_config.json", folder / "adapter_model.safetensors")
        target.add_adapter("a", adapter.matrices())
        state = target.new_state(len(tokens))
        use = None if scale is None else AdapterUse("a", "a", scale)
        logits = target.forward(tokens, state, rows="all", adapter=use).logits.copy()
        state.close()
    return logits


def runtimes_here() -> list[str]:
    return ["onnx", "llama"] if find_spec("llama_cpp") else ["onnx"]


@pytest.mark.parametrize("family", ["llama", "phi3", "qwen3", "smollm3", "granite"])
def test_exported_adapter_matches_transformers(family: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", SHAPES.get(family, TinyModel()))
    modules = FUSED if family == "phi3" else MODULES
    adapter = random_adapter(tmp_path / "adapter", model, modules=modules)
    export_floats(model, tmp_path / "pack", adapter)
    tokens = random_tokens(24)
    expected = adapted_logits(model, adapter, tokens, scale_of={"": 1.5})
    for runtime in runtimes_here():
        plain = logits_of(tmp_path / "pack", runtime, tokens, scale=None)
        assert np.abs(expected - plain).max() > 0.1
        assert np.abs(logits_of(tmp_path / "pack", runtime, tokens, scale=1.0) - expected).max() < 5 * EXACT
        assert np.abs(logits_of(tmp_path / "pack", runtime, tokens, scale=0.0) - plain).max() < EXACT


@pytest.mark.parametrize(
    ("config", "scale_of"),
    [
        ({"use_rslora": True}, {"": 3.0}),
        ({"alpha_pattern": {"q_proj": 2}}, {"": 1.5, "q_proj": 0.5}),
        ({"lora_alpha": 4, "alora_invocation_tokens": [1, 7, 9]}, {"": 1.0}),
    ],
)
def test_exported_adapter_scales_match_transformers(
    config: dict[str, object], scale_of: Mapping[str, float], tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    adapter = random_adapter(tmp_path / "adapter", model, **config)  # type: ignore[arg-type]
    manifest = export_floats(model, tmp_path / "pack", adapter)
    tokens = random_tokens(24)
    expected = adapted_logits(model, adapter, tokens, scale_of=scale_of)
    for runtime in runtimes_here():
        assert np.abs(logits_of(tmp_path / "pack", runtime, tokens, scale=1.0) - expected).max() < 5 * EXACT
    assert manifest.adapters["a"].invocation == tuple(config.get("alora_invocation_tokens", ()))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["formal", "reasoning"])
def test_exported_demo_adapters_match_transformers(name: str, tmp_path: Path) -> None:
    if not DEMO.is_dir():
        pytest.skip("the demo pair is not here")
    export_floats(DEMO / "target", tmp_path / "pack", DEMO / "adapters" / name)
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, 8000, 60)]
    expected = adapted_logits(DEMO / "target", DEMO / "adapters" / name, tokens, scale_of={"": 2.0})
    for runtime in runtimes_here():
        found = logits_of(tmp_path / "pack", runtime, tokens, scale=1.0)
        assert np.abs(found - logits_of(tmp_path / "pack", runtime, tokens, scale=None)).max() > 0.1
        assert np.abs(found - expected).max() < 1e-3
        assert np.array_equal(found.argmax(axis=1), expected.argmax(axis=1))


def test_an_adapter_changes_the_answer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model, rank=24)
    words = ["--bits", "8", "--graphs", "lora", "--lora-rank", "24"]
    assert main(["export", "--target", str(model), "--out", str(tmp_path / "pack"), *words]) == 0
    entry = add_adapter(tmp_path / "pack", "formal", folder)
    assert (entry.rank, entry.alpha) == (24, 6.0)
    assert set(entry.modules) == {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}
    for runtime in runtimes_here():
        answers = []
        with edgedecode.load(tmp_path / "pack", runtime=runtime, adapters=True) as pair:
            for adapter in (None, "formal"):
                options = SessionOptions(
                    sampling=SamplingOptions(), adapter=adapter, details=SessionDetails(ignore_eos=True)
                )
                with pair.session(options) as session:
                    answers.append(session.generate("the fox", max_tokens=24).tokens)
        assert answers[0] != answers[1]


def test_an_exported_pack_comes_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    (model / "NOTICE").write_text("Copyright")
    export_floats(model, tmp_path / "pack", random_adapter(tmp_path / "peft", model))
    check_download(hub, tmp_path / "pack")


def test_an_exported_draft_model_drafts_with_its_own(tmp_path: Path) -> None:
    """It is the target again: with the adapter that the target has, every draft is right."""
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model)
    export(model, tmp_path / "pack", draft=model, graphs=GraphRequest(("base", "lora")))
    for name in ("formal", "draft:formal", "alone"):
        add_adapter(tmp_path / "pack", name, folder)
    manifest = Manifest.load(tmp_path / "pack")
    assert manifest.adapters["draft:formal"].role == "draft"
    assert all("lora" in manifest.models[role].graphs for role in ("target", "draft"))
    shares = []
    with edgedecode.load(tmp_path / "pack", runtime="onnx", adapters=True) as pair:
        for adapter in ("formal", "alone"):
            options = SessionOptions(
                sampling=SamplingOptions(), adapter=adapter, drafter="model", details=SessionDetails(ignore_eos=True)
            )
            with pair.session(replace(options, draft_max=4)) as session:
                stats = session.generate("the fox", max_tokens=24).stats
                shares.append(stats.accepted / stats.proposed)
    assert shares[0] == 1.0 > shares[1]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (TinyModel(layers=3), "takes no adapter for layer 2"),
        (TinyModel(mlp=128), "layer 0 down_proj: matrices (4, 128) and (64, 4) do not fit a projection of 96"),
    ],
    ids=["layers", "sizes"],
)
def test_an_adapter_of_another_model_is_refused(other: TinyModel, message: str, tmp_path: Path) -> None:
    export(write_model(tmp_path / "model", TinyModel()), tmp_path / "pack", graphs=GraphRequest(("base", "lora")))
    folder = random_adapter(tmp_path / "peft", write_model(tmp_path / "other", other))
    with pytest.raises(EdgeDecodeError, match=re.escape(message)):
        add_adapter(tmp_path / "pack", "formal", folder)
    assert not Manifest.load(tmp_path / "pack").adapters
