"""Importance matrices for llama.cpp's quantizer: their content, their gain, and files written by llama-imatrix."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.errors import ExportError
from edgedecode.export.gguf.imatrix import read_imatrix
from edgedecode.export.gguf.llama_calls import quantize_file
from edgedecode.export.pair_export import PairRequest, export_pair
from edgedecode.export.stages import Stages
from edgedecode.pack.manifest import Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.export.conftest import recipe
from tests.export.test_architectures import random_tokens
from tests.export.tiny import write_model

from .stock import stock_logits
from .test_command import WIDE
from .writing import needs_engine, numbers, tensors_in, value_of

pytestmark = pytest.mark.export

TEXT = "The quick brown fox jumps over the lazy dog, and 12 apples are 5 more than 7. " * 6
FUSED = replace(WIDE, family="phi3", kv_heads=4, more={"pad_token_id": 0})
TIED = replace(WIDE, tied=True)
SHAPES = {"llama": WIDE, "tied": TIED, "fused": FUSED}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write_model(root / name, shape) for name, shape in SHAPES.items()}


def export_mixture(
    model: Path, out: Path, kind: str, *, text: Path | None = None, imatrix: Path | None = None
) -> Manifest:
    request = PairRequest(
        target=str(model),
        draft=None,
        out=out,
        recipe=recipe(8),
        noise_positions=0,
        activations="8",
        gguf=True,
        gguf_kind=kind,
        imatrix_text=text,
        imatrix=imatrix,
        cache=False,
    )
    return export_pair(request, Stages())


def mean_squares(model: Path) -> dict[str, FloatArray]:
    """Return the mean square of each linear layer's input in transformers, over the windows that the export uses."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    inputs: dict[str, list[FloatArray]] = {}

    def collect(name: str) -> object:
        return lambda module, arguments: inputs.setdefault(name, []).append(arguments[0][0].numpy())

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(collect(name))
    tokens = Tokenizer.from_file(model / "tokenizer.json").encode(TEXT)
    context = network.config.max_position_embeddings
    with torch.inference_mode():
        for start in range(0, len(tokens), context):
            if len(window := tokens[start : start + context]) > 1:
                network(torch.tensor([window]))
    return {name: (np.concatenate(parts) ** 2).mean(axis=0) for name, parts in inputs.items()}


def as_tensors(found: Mapping[str, FloatArray], *, tied: bool) -> dict[str, FloatArray]:
    """Return the importance under llama.cpp's tensor names."""
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.qkv_proj": "attn_qkv",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.gate_up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    named = {"token_embd.weight" if tied else "output.weight": found["lm_head"]}
    for name, values in found.items():
        if name.startswith("model.layers."):
            _, _, layer, part = name.split(".", 3)
            named[f"blk.{layer}.{parts[part]}.weight"] = values
    return named


@needs_engine
@pytest.mark.parametrize(("shape", "kind"), [("llama", "Q4_K_M"), ("fused", "Q5_K_M"), ("tied", "Q6_K")])
def test_imatrix_text_reduces_the_weighted_error_of_every_tensor(
    shape: str, kind: str, models: Mapping[str, Path], text: Path, tmp_path: Path
) -> None:
    importance = as_tensors(mean_squares(models[shape]), tied=shape == "tied")
    files = {}
    for name, imatrix_text in (("without", None), ("with", text)):
        manifest = export_mixture(models[shape], tmp_path / name, kind, text=imatrix_text)
        files[name] = tmp_path / name / manifest.models["target"].gguf
        assert any("llama.cpp runs its own Q" in note for note in manifest.models["target"].notes)
        assert sorted(path.name for path in files[name].parent.glob("*.*g*")) == ["model.gguf"]
        assert not list(files[name].parent.glob("*.npz"))
    exact = exact_tensors(models[shape], tmp_path)
    found = {name: tensors_in(path) for name, path in files.items()}
    kinds = {name: {title: tensor.tensor_type for title, tensor in found[name].items()} for name in found}
    assert kinds["with"] == kinds["without"]
    weighed = [title for title in importance if kinds["with"][title].name.endswith("_K")]
    assert len(weighed) == len(importance)
    for title in weighed:
        errors = {
            name: float((importance[title] * (numbers(found[name][title]) - exact[title]) ** 2).sum()) for name in found
        }
        assert errors["with"] < errors["without"], title
    assert value_of(files["with"], "quantize.imatrix.entries_count") == len(importance)
    assert value_of(files["without"], "quantize.imatrix.entries_count") is None
    tokens = random_tokens(24)
    stock = {name: stock_logits(path, tokens) for name, path in files.items()}
    assert np.isfinite(stock["with"]).all()
    assert not np.array_equal(stock["with"], stock["without"])


def exact_tensors(model: Path, folder: Path) -> Mapping[str, FloatArray]:
    request = PairRequest(
        target=str(model), draft=None, out=folder / "exact", recipe=recipe(32), noise_positions=0, gguf=True
    )
    path = folder / "exact" / export_pair(request, Stages()).models["target"].gguf
    return {title: numbers(tensor) for title, tensor in tensors_in(path).items()}


# -- files of llama-imatrix --------------------------------------------------------------------------------------------


def write_imatrix(
    path: Path, importance: Mapping[str, FloatArray], *, count: float = 40.0, sums: str = ".in_sum2"
) -> Path:
    """Write importance as `llama-imatrix` does: sums of squares and the number of rows."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    for name, values in importance.items():
        writer.add_tensor(name + sums, np.asarray(values * count, np.float32)[None])
        writer.add_tensor(name + ".counts", np.full((1, 1), count, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@needs_engine
def test_imatrix_file_gives_the_tensors_of_its_measured_text(
    models: Mapping[str, Path], text: Path, tmp_path: Path
) -> None:
    measured = export_mixture(models["llama"], tmp_path / "measured", "Q4_K_M", text=text)
    importance = as_tensors(mean_squares(models["llama"]), tied=False)
    file = write_imatrix(tmp_path / "imatrix.gguf", importance)
    read = export_mixture(models["llama"], tmp_path / "read", "Q4_K_M", imatrix=file)
    one = tensors_in(tmp_path / "measured" / measured.models["target"].gguf)
    other = tensors_in(tmp_path / "read" / read.models["target"].gguf)
    for title in importance:
        same = (one[title].data == other[title].data).mean()
        assert same > 0.98, title  # the sums were rounded in a different order


def test_imatrix_refuses_invalid_files(
    models: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"blk.0.attn_q.weight": np.ones(256, np.float32)}
    valid = write_imatrix(tmp_path / "valid.gguf", good).read_bytes()
    (tmp_path / "text.gguf").write_text("not a GGUF file")
    (tmp_path / "cut.gguf").write_bytes(valid[: len(valid) // 3])
    write_imatrix(tmp_path / "other.gguf", good, sums=".something")
    write_imatrix(tmp_path / "nan.gguf", {"blk.0.attn_q.weight": np.full(256, np.nan, np.float32)})
    expected = {
        "none": "cannot be read (No such file",
        "text": "is not an importance matrix",
        "cut": "is not an importance matrix",
        "other": "is not an importance matrix",
        "nan": "negative or non-finite values for blk.0.attn_q.weight",
    }
    words = ["export", "--target", str(models["llama"]), "--noise-positions", "0", "--out", str(tmp_path / "pack")]
    words += ["--formats", "onnx,gguf", "--gguf-type", "Q6_K"]
    for name, message in expected.items():
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
        assert main([*words, "--imatrix", str(tmp_path / f"{name}.gguf")]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "pack").exists()


@pytest.mark.parametrize(
    ("importance", "message"),
    [
        ({"blk.9.attn_q.weight": np.ones(256, np.float32)}, "it names none of the tensors"),
        ({"blk.0.attn_q.weight": np.ones(64, np.float32)}, "its blk.0.attn_q.weight has 64 columns"),
    ],
)
def test_read_imatrix_refuses_the_file_of_another_model(
    importance: Mapping[str, FloatArray], message: str, tmp_path: Path
) -> None:
    from edgedecode.export.gguf.row_source import ArrayRows
    from edgedecode.export.gguf.tensors import Tensor

    tensors = [Tensor("blk.0.attn_q.weight", (4, 256), ArrayRows(np.ones((4, 256), np.float32)))]
    file = write_imatrix(tmp_path / "imatrix.gguf", importance)
    with pytest.raises(ExportError, match=message):
        read_imatrix(file, tensors)


def test_read_imatrix_gives_columns_without_input_a_small_weight(tmp_path: Path) -> None:
    from edgedecode.export.gguf.row_source import ArrayRows
    from edgedecode.export.gguf.tensors import Tensor

    tensors = [Tensor("blk.0.attn_q.weight", (4, 256), ArrayRows(np.ones((4, 256), np.float32)))]
    values = np.r_[np.zeros(128, np.float32), np.full(128, 2, np.float32)]
    file = write_imatrix(tmp_path / "imatrix.gguf", {"blk.0.attn_q.weight": values})
    found = read_imatrix(file, tensors)["blk.0.attn_q.weight"]
    assert found[128:] == pytest.approx(2)
    assert 0 < found[0] < 1e-5
    all_zero = write_imatrix(tmp_path / "all_zero.gguf", {"blk.0.attn_q.weight": 0 * values})
    assert (read_imatrix(all_zero, tensors)["blk.0.attn_q.weight"] == 1).all()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--formats", "onnx,gguf", "--imatrix-text", "a.txt"), "add --gguf-type"),
        (("--formats", "onnx,gguf", "--imatrix", "a.gguf"), "add --gguf-type"),
        (
            ("--formats", "onnx,gguf", "--gguf-type", "Q6_K", "--imatrix", "a", "--draft", "d"),
            "measured on one model",
        ),
        (("--gguf-type", "Q6_K", "--imatrix", "a", "--imatrix-text", "b"), "not allowed with"),
    ],
)
def test_imatrix_options_refuse_bad_arguments(
    more: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--target", str(tmp_path), "--out", str(tmp_path / "pack"), *more])
    assert message in " ".join(capsys.readouterr().err.split())


# -- dry runs and timeouts of mixtures ---------------------------------------------------------------------------------


def test_quantize_file_stops_llama_cpp_after_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[float] = []

    def hang(*command: object, timeout: float, **options: object) -> None:
        timeouts.append(timeout)
        raise subprocess.TimeoutExpired("llama.cpp", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    for nbytes in (0, 100 << 20):
        source = tmp_path / f"floats{nbytes}"
        with source.open("wb") as file:
            file.truncate(nbytes)
        with pytest.raises(ExportError, match=r"did not quantize within \d+ s and was stopped"):
            quantize_file(source, tmp_path / "out", kind="Q6_K")
    assert timeouts[0] >= 60
    assert timeouts[1] > timeouts[0] + 20
