"""GGUF blocks differ from the pack's only in order: every tensor dequantizes to the same numbers, bit for bit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.export.gguf.row_source import kind_of, transcode
from edgedecode.export.gguf.tensors import Tensor, write_file
from edgedecode.export.graph.quantize import Scheme, dequantize, quantize
from tests.export.conftest import random_tokens, recipe
from tests.export.tiny import TinyModel, write_model

from .stock import stock_logits
from .writing import GGUF_SHAPES, export_gguf, needs_engine, numbers, tensors_in, value_of

pytestmark = pytest.mark.export

NAMES = [name for name in GGUF_SHAPES if " " not in name]
INTERLEAVED = ("llama", "ministral3", "mistral", "granite", "smollm3")


@pytest.mark.parametrize("bits", [4, 8])
@given(weights=arrays(np.float32, (3, 128), elements=st.floats(-1e4, 1e4, width=32)))
def test_transcode_keeps_the_numbers(bits: int, weights: FloatArray) -> None:
    scheme = Scheme(bits, 32)
    blocks = quantize(weights, scheme)
    theirs = gguf.dequantize(transcode(blocks, scheme), gguf.GGMLQuantizationType[kind_of(scheme)])
    assert np.array_equal(theirs, dequantize(blocks, scheme))


def test_transcode_byte_layout() -> None:
    """Columns 0 and 16 are the low and high nibble of the first byte after the scale; 8-bit values become signed."""
    weights = np.zeros((1, 32), np.float32)
    weights[0, [0, 16]] = (-8, 7)
    assert transcode(quantize(weights, Scheme(4, 32)), Scheme(4, 32))[0, :4].tolist() == [0x00, 0x3C, 0xF0, 0x88]
    weights[0, [0, 16]] = (127, -127)
    assert transcode(quantize(weights, Scheme(8, 32)), Scheme(8, 32))[0, [0, 1, 2, 18]].tolist() == [0, 0x3C, 127, 129]


@dataclass(frozen=True, slots=True)
class Exported:
    """A model and its exported GGUF file."""

    name: str
    bits: int
    model: Path
    file: Path


@pytest.fixture(scope="module", params=[("llama", 8), *((name, (4, 8)[place % 2]) for place, name in enumerate(NAMES))])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Each family at one width, as blocks do not depend on it; llama at both."""
    name, bits = request.param
    folder = tmp_path_factory.mktemp("exported")
    model = write_model(folder / "model", GGUF_SHAPES[name])
    manifest = export_gguf(model, folder / "pack", stored=recipe(bits))
    return Exported(name, bits, model, folder / "pack" / manifest.models["target"].gguf)


def test_gguf_tensors_match_the_quantized_checkpoint(exported: Exported) -> None:
    """All matrices, compared with blocks quantized again from the checkpoint, in transformers' row order."""
    found = {title: tensor for title, tensor in tensors_in(exported.file).items() if title != "rope_freqs.weight"}
    wanted = rounded(exported.model, bits=exported.bits)
    assert found.keys() == wanted.keys()
    for title, tensor in found.items():
        stored, expected = numbers(tensor), wanted[title]
        if exported.name in INTERLEAVED and ("attn_q." in title or "attn_k." in title):
            stored = in_halves(stored, GGUF_SHAPES[exported.name].head_size)
        kind = "Q8_0" if exported.bits == 8 or title in ("token_embd.weight", "output.weight") else "Q4_0"
        assert tensor.tensor_type.name == (kind if expected.ndim > 1 else "F32"), title
        assert np.array_equal(stored, expected), title


def rounded(model: Path, *, bits: int) -> Mapping[str, FloatArray]:
    """Return the expected tensors by their GGUF names, computed without the exporter's code."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    architecture = type(network).__name__
    layout = {"MistralForCausalLM": "llama", "Ministral3ForCausalLM": "mistral3"}.get(
        architecture, architecture.removesuffix("ForCausalLM").lower()
    )
    kinds = {title: kind for kind, title in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[layout], network.config.num_hidden_layers)
    values = {}
    for name, parameter in network.named_parameters():
        title = names.get_name(name, try_suffixes=(".weight", ".bias"))
        exact = parameter.detach().numpy()
        if exact.ndim == 1:
            values[title] = exact + np.float32(1) if "gemma" in layout and "norm" in name else exact
        else:
            scheme = Scheme(8 if title in ("token_embd.weight", "output.weight") else bits, 32)
            values[title] = dequantize(quantize(exact, scheme), scheme)
    if layout == "gemma3":  # its query_pre_attn_scalar is 24; llama.cpp uses the head size
        for title in [title for title in values if "attn_q_norm" in title]:
            values[title] = values[title] * np.float32(np.sqrt(16 / 24))
    return values


def in_halves(values: FloatArray, head: int) -> FloatArray:
    """Reorder interleaved rows to transformers' order, where a pair is half a head apart."""
    pairs = values.reshape(-1, head // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


@needs_engine
def test_llama_cpp_logits_match_the_blocks(exported: Exported) -> None:
    """The only difference to the same blocks in float arithmetic: llama.cpp rounds activations to 8 bits."""
    tokens = random_tokens(24)
    expected = exact_logits(exported.model, tokens, bits=exported.bits)
    error = stock_logits(exported.file, tokens) - expected
    assert np.sqrt((error**2).mean()) < 0.05 * expected.std()


def exact_logits(model: Path, tokens: list[int], *, bits: int) -> FloatArray:
    """Run transformers with the dequantized weights."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype="float32", attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.dim() > 1:
                scheme = Scheme(8 if name in ("model.embed_tokens.weight", "lm_head.weight") else bits, 32)
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), scheme), scheme)))
        logits: FloatArray = network(torch.tensor([tokens])).logits[0].numpy()
    return logits


def test_gguf_export_lists_the_file_in_the_manifest(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    manifest = export_gguf(model, tmp_path / "pack", stored=recipe(4))
    assert manifest.models["target"].gguf == "target/model.gguf"
    path = tmp_path / "pack" / "target" / "model.gguf"
    assert manifest.files["target/model.gguf"].nbytes == path.stat().st_size
    assert value_of(path, "general.file_type") == 2
    assert value_of(path, "general.license") == "mit"


def test_gguf_export_keeps_float16(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel())
    export_gguf(model, tmp_path / "pack", stored=recipe(16))
    found = tensors_in(tmp_path / "pack" / "target" / "model.gguf")
    assert {tensor.tensor_type.name for tensor in found.values()} == {"F16", "F32"}
    assert found["output.weight"].tensor_type.name == "F16"


def test_gguf_export_refuses_blocks_of_128(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", TinyModel(hidden=128, mlp=128, head_size=32))
    with pytest.raises(ExportError, match=r"no type for int4, block 128.*--block-size 32"):
        export_gguf(model, tmp_path / "pack", stored=recipe(4, block_size=128))


def test_write_file_reads_a_bounded_number_of_rows_at_a_time(tmp_path: Path) -> None:
    """For any tensor size, and in full heads if rows are reordered."""
    rows = CountingRows(columns=2048)
    tensor = Tensor("blk.0.attn_q.weight", (4096, 2048), rows, head=128)
    write_file(tmp_path / "file.gguf", [], [tensor], progress=lambda _: None, release=lambda: None)
    assert sum(rows.counts) == 4096
    assert max(rows.counts) * 2048 <= 1 << 20
    assert all(count % 128 == 0 for count in rows.counts[:-1])


@dataclass
class CountingRows:
    """Rows of zeros that record the size of each read."""

    columns: int
    kind: str = "F16"
    counts: list[int] = field(default_factory=list)

    def read(self, first: int, end: int) -> npt.NDArray[np.float16]:
        self.counts.append(end - first)
        return np.zeros((end - first, self.columns), np.float16)
