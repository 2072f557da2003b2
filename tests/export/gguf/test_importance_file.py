"""llama.cpp's importance files: written by a calibration, read in its place."""

import struct
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.export import model_export
from edgedecode.export.graph.error_feedback import Importance, Moments
from edgedecode.export.graph.quantize import Scheme, dequantize, quantize
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal
from tests.export.tiny import TinyModel, write_model
from tests.small_tokenizers import byte_level

pytestmark = pytest.mark.export

TEXT = "The quick brown fox jumps over the lazy dog, and 12 apples are 5 more than 7. " * 4
TOKENS = 128
"""Of the text: a power of two, so that sums and means are exact multiples."""
FUSED = TinyModel(family="phi3", kv_heads=4, more={"pad_token_id": 0})
TIED = TinyModel(tied=True)
PARTS = {
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


def run(*words: str | Path) -> int:
    return main([str(word) for word in words])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, encode = tmp_path_factory.mktemp("text") / "text.txt", byte_level().encode
    path.write_text(next(TEXT[:end] for end in range(len(TEXT)) if len(encode(TEXT[:end]).ids) == TOKENS))
    return path


@pytest.fixture(scope="module")
def written(llama: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The importance that an export of the tiny Llama measures on the text."""
    folder = tmp_path_factory.mktemp("written")
    words = ("--bits", "4", "--calibrate-text", text, "--write-imatrix", folder / "imatrix.gguf")
    assert run("export", "--target", llama, "--out", folder / "pack", *words) == 0
    return folder / "imatrix.gguf"


def mean_squares(model: Path, tokens: list[int], *, tied: bool) -> dict[str, FloatArray]:
    """Return the mean square of each matrix's input in transformers, by llama.cpp's names."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    inputs: dict[str, FloatArray] = {}

    def collect(name: str) -> object:
        return lambda module, arguments: inputs.update({name: arguments[0][0].numpy()})

    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(collect(name))
    with torch.inference_mode():
        network(torch.tensor([tokens]))
    found = {("token_embd" if tied else "output") + ".weight": inputs.pop("lm_head")}
    for name, values in inputs.items():
        _, _, layer, part = name.split(".", 3)
        found[f"blk.{layer}.{PARTS[part]}.weight"] = values
    return {name: (values.astype(np.float64) ** 2).mean(axis=0).astype(np.float32) for name, values in found.items()}


@pytest.mark.parametrize("tiny", [TinyModel(), TIED, FUSED], ids=["llama", "tied", "fused"])
def test_the_gguf_package_reads_the_mean_squares_of_all_matrices(tiny: TinyModel, text: Path, tmp_path: Path) -> None:
    model, path = write_model(tmp_path / "model", tiny), tmp_path / "imatrix.gguf"
    words = ("--calibrate-text", text, "--write-imatrix", path)
    assert run("export", "--target", model, "--out", tmp_path / "pack", "--bits", "4", *words) == 0
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    known = gguf.Keys.IMatrix
    assert fields == {
        gguf.Keys.General.TYPE: "imatrix",
        known.DATASETS: ["text.txt"],
        known.CHUNK_COUNT: 1,
        known.CHUNK_SIZE: 512,
    }
    tokens = byte_level().encode(text.read_text()).ids
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    expected = mean_squares(model, tokens, tied=tiny.tied)
    assert set(tensors) == {name + end for name in expected for end in (".in_sum2", ".counts")}
    for name, means in expected.items():
        assert tensors[f"{name}.counts"].shape == (1, 1)
        assert tensors[f"{name}.in_sum2"].shape == (1, len(means))
        assert float(tensors[f"{name}.counts"][0, 0]) == TOKENS
        np.testing.assert_allclose(tensors[f"{name}.in_sum2"][0] / TOKENS, means, rtol=1e-3, atol=1e-6)


def test_blocks_are_those_of_calibration_without_correlations(
    llama: Path, text: Path, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("export", "--target", llama, "--bits", "4", "--head-bits", "4", "--no-mixed")
    assert run(*words, "--out", tmp_path / "read", "--imatrix", written) == 0
    found = model_export.find_moments

    def uncorrelated(*arguments: object, **options: object) -> dict[str, Moments]:
        moments = found(*arguments, **options)  # type: ignore[arg-type]
        return {
            name: Moments(tuple(np.diag(piece.diagonal()) for piece in each.pieces)) for name, each in moments.items()
        }

    monkeypatch.setattr(model_export, "find_moments", uncorrelated)
    assert run(*words, "--out", tmp_path / "calibrated", "--calibrate-text", text) == 0
    packs = [Manifest.load(tmp_path / name) for name in ("read", "calibrated")]
    assert packs[0].files["target/weights.bin"] == packs[1].files["target/weights.bin"]
    assert "importance file imatrix.gguf" in " ".join(packs[0].models["target"].notes)
    assert packs[1].models["target"].notes == ()


def test_a_files_importance_lowers_the_weighted_error() -> None:
    rng, scheme = np.random.default_rng(1), Scheme(4, 32)
    weights, means = rng.standard_normal((16, 128)).astype(np.float32), rng.gamma(0.3, size=128).astype(np.float32)
    found = (quantize(weights, scheme, factors=factors) for factors in ((), Importance(means).factors()))
    errors = [float((means * (dequantize(blocks, scheme) - weights) ** 2).sum()) for blocks in found]
    assert errors[1] < 0.8 * errors[0]


def test_importance_is_measured_although_weights_are_kept(
    llama: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "imatrix.gguf"
    words = ("export", "--target", llama, "--out", tmp_path / "pack", "--bits", "4", "--calibrate-text", text)
    with monkeypatch.context() as patch:
        patch.setattr(model_export, "check_parity", Mock(side_effect=RuntimeError("stopped")))
        with pytest.raises(RuntimeError):
            run(*words, "--write-imatrix", path)
    path.unlink()
    assert run(*words, "--write-imatrix", path) == 0
    assert path.is_file()


def legacy(path: Path, source: Path) -> Path:
    """Write the same importance as an old .dat file."""
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(source).tensors}
    names = [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]
    data = struct.pack("<i", len(names))
    for name in names:
        sums = tensors[f"{name}.in_sum2"][0]
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", TOKENS, len(sums)) + sums.tobytes()
    path.write_bytes(data + struct.pack("<ii", 1, 8) + b"text.txt")
    return path


def test_old_files_are_read_too(llama: Path, written: Path, tmp_path: Path) -> None:
    for name, file in (("new", written), ("old", legacy(tmp_path / "imatrix.dat", written))):
        assert run("export", "--target", llama, "--bits", "4", "--out", tmp_path / name, "--imatrix", file) == 0
    old, new = (Manifest.load(tmp_path / name).files["target/weights.bin"] for name in ("old", "new"))
    assert old == new


def changed(source: Path, path: Path, fault: str) -> Path:
    """Write an importance file with a fault, with the gguf package."""
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    writer.add_string("general.type", "model" if fault == "type" else "imatrix")
    for tensor in gguf.GGUFReader(source).tensors:
        values = np.array(tensor.data)
        if tensor.name.startswith("blk.1.ffn_down"):
            if fault == "renamed":
                continue
            if tensor.name.endswith(".counts"):
                values *= fault != "count"
            elif fault == "nan":
                values[0, 3] = np.nan
            elif fault == "negative":
                values[0, 3] = -1
            elif fault == "narrow":
                values = values[:, :32].copy()
        if not (fault == "head" and tensor.name.startswith("output")):
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("type", "not an importance file: its general.type is 'model'"),
        ("renamed", "of another model than tiny-llama: it has no blk.1.ffn_down.weight"),
        ("narrow", "its blk.1.ffn_down.weight has 32 columns, not 96"),
        ("count", "no importance for blk.1.ffn_down.weight: it counts 0 tokens"),
        ("nan", "the sums for blk.1.ffn_down.weight are negative, not finite or all zero"),
        ("negative", "the sums for blk.1.ffn_down.weight are negative, not finite or all zero"),
        ("head", "has no output.weight, as usual for llama-imatrix: use --head-bits 8"),
        ("truncated", "truncated or damaged"),
        ("truncated dat", "not an importance file: it is of another format, or truncated"),
        ("text", "not an importance file: it is of another format, or truncated"),
        ("empty", "not an importance file: it is of another format, or truncated"),
        ("missing", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    fault: str,
    message: str,
    llama: Path,
    written: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    refusal: Refusal,
) -> None:
    path = tmp_path / "wrong.gguf"
    if fault == "text":
        path = text
    elif fault == "empty":
        path.touch()
    elif fault.startswith("truncated"):
        whole = legacy(path, written) if fault.endswith("dat") else written
        path.write_bytes(whole.read_bytes()[:-600])
    elif fault != "missing":
        changed(written, path, fault)
    capsys.readouterr()
    words = ("--bits", "4", "--head-bits", "4", "--no-mixed", "--imatrix", path)
    assert message in refusal("export", "--target", llama, "--out", tmp_path / "pack", *words)
    assert not (tmp_path / "pack").exists()


def test_a_deeper_models_file_is_refused(written: Path, text: Path, tmp_path: Path, refusal: Refusal) -> None:
    shallow = write_model(tmp_path / "shallow", replace(TinyModel(), layers=1))
    assert "of another model than shallow: it has 2 layers, not 1" in refusal(
        "export", "--target", shallow, "--out", tmp_path / "pack", "--bits", "4", "--imatrix", written
    )


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    llama: Path, tmp_path: Path, refusal: Refusal
) -> None:
    words = ("--bits", "4", "--write-imatrix", tmp_path / "no" / "file.gguf")
    assert "cannot be written: give another --write-imatrix" in refusal(
        "export", "--target", llama, "--out", tmp_path / "pack", *words
    )
    assert not (tmp_path / "pack").exists()
