"""Adapters exported into a pack: both engines match transformers with the delta merged into the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode import SamplingOptions, SessionOptions
from edgedecode.adapters.peft_folder import read_peft_adapter
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.decoding.model import AdapterModel, AdapterUse
from edgedecode.export.pair_export import PairRequest, check_pair, export_pair
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from tests.export.conftest import recipe
from tests.export.gguf.test_stock import EXACT
from tests.export.test_architectures import SHAPES, random_tokens
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
    """Export a model in float32 for both engines, with one adapter."""
    request = PairRequest(
        target=str(model),
        draft=None,
        out=pack,
        recipe=recipe(32),
        noise_positions=0,
        activations="8",
        gguf=True,
        adapters={"a": adapter},
    )
    return export_pair(request, Stages())


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


def exported(model: Path, pack: Path, *more: str) -> int:
    words = ["export", "--target", str(model), "--out", str(pack), "--noise-positions", "0", "--no-cache"]
    return main([*words, "--bits", "8", *more])


def test_exported_adapter_changes_the_answer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model, rank=24)
    assert exported(model, tmp_path / "pack", "--adapter", f"formal={folder}") == 0
    manifest = Manifest.load(tmp_path / "pack")
    entry = manifest.adapters["formal"]
    assert (entry.file, entry.role) == ("adapters/formal/adapter_model.safetensors", "target")
    assert (entry.rank, entry.alpha) == (24, 6.0)
    assert set(entry.modules) == {"q_proj", "k_proj", "v_proj", "o_proj", "down_proj"}
    assert {entry.file, entry.config} <= set(manifest.files)
    assert manifest.models["target"].graphs["lora"].lora_rank == 24  # above the default rank
    for runtime in runtimes_here():
        answers = []
        with edgedecode.load(tmp_path / "pack", runtime=runtime, adapters=True) as pair:
            for adapter in (None, "formal"):
                options = SessionOptions(sampling=SamplingOptions(), adapter=adapter, ignore_eos=True)
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
    words = ["--draft", str(model), "--adapter", f"formal={folder}", "--adapter", f"draft:formal={folder}"]
    assert exported(model, tmp_path / "pack", *words, "--adapter", f"alone={folder}") == 0
    manifest = Manifest.load(tmp_path / "pack")
    assert manifest.adapters["draft:formal"].role == "draft"
    assert all("lora" in manifest.models[role].graphs for role in ("target", "draft"))
    shares = []
    with edgedecode.load(tmp_path / "pack", runtime="onnx", adapters=True) as pair:
        for adapter in ("formal", "alone"):
            options = SessionOptions(sampling=SamplingOptions(), adapter=adapter, drafter="model", ignore_eos=True)
            with pair.session(replace(options, draft_max=4)) as session:
                stats = session.generate("the fox", max_tokens=24).stats
                shares.append(stats.accepted / stats.proposed)
    assert shares[0] == 1.0 > shares[1]


@pytest.mark.parametrize(
    ("other", "more", "message"),
    [
        (None, [], "the adapter 'draft:formal' is for a draft model, which the pack does not have"),
        (TinyModel(layers=3), ["--draft"], "takes no adapter for layer 2"),
    ],
    ids=["no draft model", "layers"],
)
def test_an_adapter_that_does_not_fit_the_draft_model_leaves_nothing(
    other: TinyModel | None, more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model if other is None else write_model(tmp_path / "other", other))
    words = [*more, str(model)] if more else []
    assert exported(model, tmp_path / "pack", *words, "--adapter", f"draft:formal={folder}") == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("other", "more", "message"),
    [
        (TinyModel(layers=3), [], "takes no adapter for layer 2"),
        (TinyModel(mlp=128), [], "layer 0 down_proj: matrices (4, 128) and (64, 4) do not fit a projection of 96"),
        (TinyModel(), ["--graphs", "base,lora", "--lora-modules", "q_proj"], "it takes: q_proj"),
    ],
    ids=["layers", "sizes", "modules"],
)
def test_export_with_an_adapter_that_does_not_fit_leaves_no_files(
    other: TinyModel, more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", write_model(tmp_path / "other", other))
    assert exported(model, tmp_path / "pack", *more, "--adapter", f"formal={folder}") == 1
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other", "peft"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--adapter", "a=b", "--adapter", "a=c"], "the name 'a' is given twice"),
        (["--adapter", "b"], "is not NAME=PATH"),
    ],
)
def test_export_refuses_conflicting_adapter_options(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["export", "--target", "x", "--out", "pack", *more])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a", "off"])
def test_dry_run_checks_the_adapter(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = model if name == "a" else random_adapter(tmp_path / "peft", model)
    words = ["export", "--target", str(model), "--dry-run", "--adapter", f"{name}={folder}"]
    assert main(words) == 1
    wanted = "give the folder that PEFT saved" if name == "a" else "'off' is not a valid adapter name"
    assert wanted in capsys.readouterr().err


def test_dry_run_counts_the_graph_and_files_of_an_adapter(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    folder = random_adapter(tmp_path / "peft", model)
    pair = PairRequest(str(model), str(model), tmp_path / "pack", recipe(8), noise_positions=0)
    plain, more = (check_pair(replace(pair, adapters=each), out=None) for each in ({}, {"draft:a": folder}))
    assert [job.graphs.names for job in more.jobs] == [("base",), ("base", "lora")]
    assert more.nbytes - plain.nbytes >= sum(path.stat().st_size for path in folder.iterdir())
