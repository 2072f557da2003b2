"""`imatrix`: sums of squares of a GGUF file's inputs are transformers', and llama-imatrix's file holds them."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.conftest import Refusal
from tests.export.conftest import recipe, run
from tests.export.tiny import TinyModel, write_model
from tests.small_tokenizers import byte_level

from .test_importance_file import FUSED, TIED, mean_squares
from .writing import GGUF_SHAPES, export_gguf

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]

CHUNK = 128
"""Tokens: a power of two, so that sums and means are exact multiples."""
LINE = "The quick brown fox jumps over the lazy dog, and 12 apples are 5 more than 7.\n"


def text_of(path: Path, *, chunks: int, start: int = 0) -> Path:
    """Write the chunks of a long text from `start` on."""
    tokenizer = byte_level()
    ids = tokenizer.encode(LINE * 40).ids[start * CHUNK : (start + chunks) * CHUNK]
    path.write_text(tokenizer.decode(ids, skip_special_tokens=False))
    assert tokenizer.encode(path.read_text()).ids == ids
    return path


def contents(path: Path) -> tuple[dict[str, object], dict[str, FloatArray]]:
    """Return fields and tensors as the gguf package reads them."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return fields, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


@pytest.mark.parametrize(
    ("shape", "bits", "bound"),
    [*((shape, 32, 1e-5) for shape in ("llama", "tied", "fused", "gemma2", "qwen3")), ("llama", 8, 0.03)],
)
def test_sums_are_those_of_transformers(shape: str, bits: int, bound: float, tmp_path: Path) -> None:
    """Of quantized weights, the sums are near those of the floats."""
    tiny = {**GGUF_SHAPES, "tied": TIED, "fused": FUSED}[shape]
    model = write_model(tmp_path / "model", tiny)
    file = tmp_path / "pack" / export_gguf(model, tmp_path / "pack", stored=recipe(bits)).models["target"].gguf
    text = text_of(tmp_path / "text.txt", chunks=2)
    words = ("-f", text, "-o", tmp_path / "imatrix.gguf", "-c", str(CHUNK))
    assert run("imatrix", file, *words) == 0
    fields, tensors = contents(tmp_path / "imatrix.gguf")
    known = gguf.Keys.IMatrix
    assert fields == {
        gguf.Keys.General.TYPE: "imatrix",
        known.DATASETS: ["text.txt"],
        known.CHUNK_COUNT: 2,
        known.CHUNK_SIZE: CHUNK,
    }
    ids = byte_level().encode(text.read_text()).ids
    means = [mean_squares(model, ids[start : start + CHUNK], tied=tiny.tied) for start in (0, CHUNK)]
    names = [name for name in means[0] if name.startswith("blk.")]
    assert set(tensors) == {name + end for name in names for end in (".in_sum2", ".counts")}
    for name in names:
        assert tensors[f"{name}.counts"].tolist() == [[2 * CHUNK]]
        expected = CHUNK * (means[0][name] + means[1][name])
        sums = tensors[f"{name}.in_sum2"]
        assert sums.shape == (1, len(expected))
        assert np.abs(sums[0] - expected).sum() < bound * expected.sum()


def test_two_texts_that_are_added_are_one_text_which_export_reads(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "pack" / export_gguf(llama, tmp_path / "pack").models["target"].gguf
    texts = [
        text_of(tmp_path / f"{name}.txt", chunks=chunks, start=start)
        for name, chunks, start in (("first", 1, 0), ("rest", 2, 1), ("whole", 3, 0))
    ]
    first, both, whole = (tmp_path / f"{name}.gguf" for name in ("first", "both", "whole"))
    for text, out, *more in ((texts[0], first), (texts[1], both, "--add", first), (texts[2], whole)):
        assert run("imatrix", file, "-f", text, "-o", out, "-c", str(CHUNK), *more) == 0
    (fields, added), (expected_fields, expected) = contents(both), contents(whole)
    assert fields.pop(gguf.Keys.IMatrix.DATASETS) == ["first.txt", "rest.txt"]
    assert expected_fields.pop(gguf.Keys.IMatrix.DATASETS) == ["whole.txt"]
    assert fields == expected_fields
    assert set(added) == set(expected)
    for name, values in expected.items():
        if name.endswith(".counts"):
            assert added[name].tolist() == values.tolist() == [[3 * CHUNK]]
        np.testing.assert_allclose(added[name], values, rtol=1e-6)
    words = ("--bits", "4", "--imatrix", both)
    assert run("export", "--target", llama, "--out", tmp_path / "read", *words) == 0


def test_a_file_of_another_model_is_not_added(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    text = text_of(tmp_path / "text.txt", chunks=1)
    models = {"llama": llama}
    for name, tiny in (("shallow", TinyModel(layers=1)), ("wide", TinyModel(mlp=160))):
        models[name] = write_model(tmp_path / name, tiny)
    files = {
        name: tmp_path / f"{name}-pack" / export_gguf(model, tmp_path / f"{name}-pack").models["target"].gguf
        for name, model in models.items()
    }
    words = ("-f", text, "-c", str(CHUNK))
    assert run("imatrix", files["llama"], *words, "-o", known := tmp_path / "llama.gguf") == 0
    capsys.readouterr()
    for name, fault in (
        ("shallow", "it has blk.1.attn_k.weight too"),
        ("wide", "its blk.0.ffn_down.weight has 96 columns, not 160"),
    ):
        assert f"is the importance file of another model: {fault}" in refusal(
            "imatrix", files[name], *words, "-o", tmp_path / "out.gguf", "--add", known
        )
    assert not list(tmp_path.glob("out.gguf*"))
