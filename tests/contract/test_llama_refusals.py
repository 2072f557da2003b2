"""Inputs known to make llama.cpp end the process; each must give a one-line error instead.

Files were found by changing every field and tensor of small models; calls are in `test_llama_passes.py`.
"""

import os
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.model import AdapterUse
from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, ManifestError
from edgedecode.gguf.adapter import AdapterFile, check_adapter
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.encoding import F32, WrittenTensor, write_gguf
from edgedecode.gguf.fields import Value
from edgedecode.gguf.header import Header, read_header
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.pack.gguf_check import check_header
from edgedecode.runtimes.llama.files.engine_probe import HIDDEN, ROWS, tiny_model
from edgedecode.runtimes.llama.files.scratch import STALE_SECONDS, scratch_file
from tests.contract.conftest import DAMAGE, GgufOpener, damage, open_gguf
from tests.contract.reference import assert_close, assert_moved, logits_of
from tests.contract.toy_graph import ToyShape

F16, F64, I32 = 1, 28, 26
Tensors = dict[str, WrittenTensor]


def written(path: Path, *, fields: Mapping[str, Value], tensors: Tensors) -> Path:
    with path.open("wb") as file:
        write_gguf(file, fields, list(tensors.values()))
    return path


def floats(name: str, *shape: int, kind: int = F32) -> WrittenTensor:
    width = {F16: np.float16, F64: np.float64, I32: np.int32}.get(kind, np.float32)
    return WrittenTensor(name, shape, kind, np.zeros(int(np.prod(shape)), width).tobytes())


def parts_of(path: Path) -> tuple[dict[str, Value], Tensors]:
    """Return the fields and tensors of a file without arrays."""
    contents, content = read_contents(path), path.read_bytes()
    start = len(content) - max(item.offset + item.nbytes + -item.nbytes % 32 for item in contents.tensors.values())
    tensors = {
        item.name: WrittenTensor(item.name, item.shape, item.type, content[start + item.offset :][: item.nbytes])
        for item in contents.tensors.values()
    }
    return dict(contents.fields), tensors


def bytes_of(tensor: WrittenTensor) -> bytes:
    assert isinstance(tensor.data, bytes)
    return tensor.data


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_model())
    return path


def test_written_tiny_model_equals_the_original(tiny: Path) -> None:
    fields, tensors = parts_of(tiny)
    assert written(tiny, fields=fields, tensors=tensors).read_bytes() == tiny_model()


FIELDS: dict[str, tuple[str, Value, str]] = {
    "no layers": ("llama.block_count", 0, "has no layers"),
    "more layers than the engine has room for": ("llama.block_count", 513, "has 513 layers"),
    "a context that no cache holds": ("llama.context_length", 10**9, "claims a context of 1000000000 tokens"),
    "layers that predict further tokens": ("llama.nextn_predict_layers", 1, "1 of its 1 layers"),
    "an unknown rotary scaling": ("llama.rope.scaling.type", "spiral", "rotary scaling is 'spiral'"),
    "no rotation": ("llama.rope.dimension_count", 0, "rotates nothing"),
    "an odd rotation": ("llama.rope.dimension_count", 7, "rotates 7 values"),
    "a rotation wider than a head": ("llama.rope.dimension_count", 66, "rotates 66 values of heads of 64"),
    "KV heads that heads cannot share": ("llama.attention.head_count_kv", 3, "do not share"),
    "heads that the query product does not give": ("llama.attention.key_length", 96, "returns 256 values for queries"),
    "experts of which none are used": ("llama.expert_count", 4, "uses 0 of 4 experts"),
    "more experts than the engine has room for": ("llama.expert_count", 4000, "of 4000 experts"),
    "experts used of none": ("llama.expert_used_count", 2, "uses 2 of 0 experts"),
    "attention that looks ahead": ("llama.attention.causal", 0, "is not causal"),
    "windows in no layer": ("llama.attention.sliding_window_pattern", 1, "no layer has the sliding window"),
    "a norm without epsilon": ("llama.attention.layer_norm_rms_epsilon", 0.0, "epsilon is 0.0"),
    "a norm with no number": ("llama.attention.layer_norm_rms_epsilon", float("nan"), "epsilon is nan"),
    "a field without a name": ("", 1, "a field has no name"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_read_header_refuses_fields_that_end_the_process(tiny: Path, case: str) -> None:
    name, value, words = FIELDS[case]
    fields, tensors = parts_of(tiny)
    refused(written(tiny, fields={**fields, name: value}, tensors=tensors), words)


TENSORS: dict[str, tuple[WrittenTensor, str]] = {
    "a half-precision norm": (floats("output_norm.weight", HIDDEN, kind=F16), "a vector, and not of 32-bit floats"),
    "a matrix of integers": (floats("blk.0.attn_q.weight", HIDDEN, HIDDEN, kind=I32), "is of type I32"),
    "a matrix of doubles": (floats("output.weight", HIDDEN, ROWS, kind=F64), "is of type F64"),
    "an empty matrix": (floats("output.weight", HIDDEN, 0), "is empty"),
    "a half-precision convolution": (floats("blk.0.ssm_conv1d.weight", 4, HIDDEN, kind=F16), "is not of 32-bit floats"),
    "rows of half blocks": (WrittenTensor("output.weight", (33, ROWS), 8, bytes(34 * ROWS * 2)), "not whole blocks"),
}


@pytest.mark.parametrize("case", TENSORS)
def test_read_header_refuses_tensors_that_end_the_process(tiny: Path, case: str) -> None:
    tensor, words = TENSORS[case]
    fields, tensors = parts_of(tiny)
    refused(written(tiny, fields=fields, tensors={**tensors, tensor.name: tensor}), words)


def refused(path: Path, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_header(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_read_header_refuses_truncated_tensor_data(tiny: Path) -> None:
    tiny.write_bytes(tiny_model()[:-1])
    refused(tiny, "truncated")


def with_tokens(tokens: list[str], *, model: str = "gpt2") -> bytes:
    """Return the tiny model with a vocabulary."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    content = tiny_model().replace(text("none"), text(model))
    (count,) = struct.unpack_from("<Q", content, 16)
    array = struct.pack("<IQ", 8, len(tokens)) + b"".join(text(token) for token in tokens)
    field = text("tokenizer.ggml.tokens") + struct.pack("<I", 9) + array
    return content[:16] + struct.pack("<Q", count + 1) + field + content[24:] + bytes(64)


@pytest.mark.parametrize(
    ("place", "token", "fine"), [(9, "w3", False), (9, "", True), (0, "[EMPTY_9]", True), (0, "[EMPTY_8]", False)]
)
def test_read_header_refuses_a_token_listed_twice(tiny: Path, place: int, token: str, fine: bool) -> None:
    """The engine names empty tokens [EMPTY_ and their id], so that a token of that name is a duplicate."""
    tokens = [f"w{index}" for index in range(ROWS)]
    tokens[place], tokens[8] = token, ""
    tiny.write_bytes(with_tokens(tokens))
    if fine:
        assert read_header(tiny).rows == ROWS
    else:
        refused(tiny, "twice")
    tiny.write_bytes(with_tokens(tokens, model="no_vocab"))
    assert read_header(tiny).rows == ROWS, "a vocabulary that the engine does not load"


def test_open_requires_the_manifests_architecture(gguf_opener: GgufOpener) -> None:
    entry = gguf_opener.entry(ToyShape())
    path = gguf_opener.root(ToyShape()) / entry.gguf
    header = read_header(path)
    for fine in ("qwen2", "Qwen2ForCausalLM", "NewForCausalLM"):
        check_header(header, replace(entry, architecture=fine), path=path)
    for other in ("llama", "LlamaForCausalLM"):
        with pytest.raises(ManifestError, match=f"has the architecture 'qwen2', the manifest says {other}"):
            check_header(header, replace(entry, architecture=other), path=path)


# -- adapter files ---------------------------------------------------------------------------------------------------

LORA: dict[str, Value] = {
    "general.type": "adapter",
    "adapter.type": "lora",
    "general.architecture": "llama",
    "adapter.lora.alpha": 8.0,
}
QUERY = "blk.0.attn_q.weight"


def pair(target: str = QUERY, *, inputs: int = HIDDEN, outputs: int = HIDDEN, rank: int = 4) -> Tensors:
    sides = [floats(f"{target}.lora_a", inputs, rank), floats(f"{target}.lora_b", rank, outputs)]
    return {side.name: side for side in sides}


def one(tensor: WrittenTensor) -> Tensors:
    return {tensor.name: tensor}


ADAPTERS: dict[str, tuple[Callable[[], Tensors], Mapping[str, Value | None], type[EdgeDecodeError], str]] = {
    "a model": (pair, {"general.type": "model"}, InputError, "general.type is 'model'"),
    "a type that is not text": (pair, {"general.type": 1}, InputError, "is not a LoRA adapter"),
    "not a LoRA": (pair, {"adapter.type": "control"}, InputError, "adapter.type is 'control'"),
    "another architecture": (pair, {"general.architecture": "qwen2"}, InputError, "the model base is 'llama'"),
    "an architecture that is not text": (pair, {"general.architecture": 3}, InputError, "the model base is 'llama'"),
    "no alpha": (pair, {"adapter.lora.alpha": None}, ManifestError, "adapter.lora.alpha"),
    "an alpha of another type": (pair, {"adapter.lora.alpha": 8}, ManifestError, "adapter.lora.alpha"),
    "an alpha that is not a number": (pair, {"adapter.lora.alpha": float("nan")}, ManifestError, "adapter.lora.alpha"),
    "no tensors": (dict, {}, ManifestError, "holds no tensors"),
    "half a pair": (lambda: one(floats(f"{QUERY}.lora_a", HIDDEN, 4)), {}, ManifestError, "one half"),
    "a product missing in the base": (lambda: pair("blk.1.attn_q.weight"), {}, InputError, "another base"),
    "a vector": (lambda: pair("output_norm.weight"), {}, InputError, "another base"),
    "other inputs": (lambda: pair(inputs=HIDDEN + 1), {}, InputError, "another base"),
    "other outputs": (lambda: pair(outputs=HIDDEN + 1), {}, InputError, "another base"),
    "ranks that differ": (lambda: pair() | one(floats(f"{QUERY}.lora_b", 5, HIDDEN)), {}, InputError, "another base"),
    "integers": (
        lambda: pair() | one(floats(f"{QUERY}.lora_a", HIDDEN, 4, kind=I32)),
        {},
        ManifestError,
        "does not multiply",
    ),
    "a norm, which the engine ignores": (
        lambda: pair() | one(floats("blk.0.attn_norm.weight", HIDDEN)),
        {},
        CapabilityError,
        "llama.cpp ignores",
    ),
}


def checked(path: Path, header: Header) -> AdapterFile:
    return check_adapter(read_contents(path), path, header, name="base")


@pytest.mark.parametrize("case", ADAPTERS)
def test_adapter_file_that_does_not_fit_is_refused(tiny: Path, tmp_path: Path, case: str) -> None:
    make, changes, error, words = ADAPTERS[case]
    header = read_header(tiny)
    fields = {name: value for name, value in {**LORA, **changes}.items() if value is not None}
    path = written(tmp_path / "adapter.gguf", fields=fields, tensors=make())
    with pytest.raises(error) as caught:
        checked(path, header)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_adapter_of_a_tied_embedding_is_refused(tiny: Path, tmp_path: Path) -> None:
    name = "token_embd.weight"
    tensors = one(floats(f"{name}.lora_a", 4, ROWS)) | one(floats(f"{name}.lora_b", 4, HIDDEN))
    path = written(tmp_path / "adapter.gguf", fields=LORA, tensors=tensors)
    header = read_header(tiny)
    assert checked(path, header).rank == 4
    tied = {key: tensor for key, tensor in header.tensors.items() if key != "output.weight"}
    with pytest.raises(CapabilityError, match="output too"):
        checked(path, replace(header, tensors=tied))


def test_adapter_matrix_of_one_column_may_be_a_vector(tiny: Path, tmp_path: Path) -> None:
    tensors = one(floats(f"{QUERY}.lora_a", HIDDEN)) | one(floats(f"{QUERY}.lora_b", 1, HIDDEN))
    path = written(tmp_path / "adapter.gguf", fields=LORA, tensors=tensors)
    assert checked(path, read_header(tiny)).ranks == {QUERY: 1}


@pytest.mark.parametrize("how", DAMAGE)
def test_adapter_file_that_is_damaged_is_refused(tiny: Path, tmp_path: Path, how: str) -> None:
    path = written(tmp_path / "adapter.gguf", fields=LORA, tensors=pair())
    damage(path, how)
    with pytest.raises(ManifestError, match=r"adapter\.gguf"):
        checked(path, read_header(tiny))


def test_adapter_file_is_applied_with_its_alpha(gguf_opener: GgufOpener, tmp_path: Path) -> None:
    """The result equals a model whose weights hold the delta: times alpha over rank, times the scale."""
    budget = Budget()
    model: object = gguf_opener(architecture="llama", budget=budget)
    entry = gguf_opener.entry(ToyShape(), "llama")
    source = gguf_opener.root(ToyShape(), "llama") / entry.gguf
    rng = np.random.default_rng(3)
    down, up = rng.standard_normal((4, 64)).astype(np.float32), rng.standard_normal((64, 4)).astype(np.float32)
    tensors = one(WrittenTensor(f"{QUERY}.lora_a", (64, 4), F32, down.tobytes()))
    tensors |= one(WrittenTensor(f"{QUERY}.lora_b", (4, 64), F32, up.tobytes()))
    path = written(tmp_path / "adapter.gguf", fields=LORA, tensors=tensors)
    fields, merged = parts_of(source)
    weight = np.frombuffer(bytes_of(merged[QUERY]), np.float32).reshape(64, 64) + up @ down * (8.0 / 4 * 0.25)
    merged[QUERY] = WrittenTensor(QUERY, (64, 64), F32, weight.astype(np.float32).tobytes())
    root = tmp_path / "merged"
    root.mkdir()
    written(root / entry.gguf, fields=fields, tensors=merged)
    wanted_model = open_gguf(entry, root, budget=Budget())
    from edgedecode.runtimes.llama.llama_model import LlamaModel

    assert isinstance(model, LlamaModel)
    tokens = [int(token) for token in rng.integers(0, 128, 40)]
    model.add_adapter_file("d1", path)
    path.unlink()
    leased = sum(lease.nbytes for lease in budget.leases if lease.name.startswith("adapter:"))
    assert leased >= down.nbytes + up.nbytes
    use = AdapterUse(name="formal", digest="d1", scale=0.25)
    found = model.forward(tokens, model.new_state(40), rows="all", adapter=use).logits.copy()
    assert_close(found, logits_of(wanted_model, tokens))
    assert_moved(found, logits_of(model, tokens))


def test_adapter_pass_memory_is_leased(gguf_opener: GgufOpener, tmp_path: Path) -> None:
    from edgedecode.errors import BudgetExceeded
    from edgedecode.runtimes.llama.llama_model import LlamaModel

    budget = Budget()
    model = gguf_opener(architecture="llama", budget=budget)
    assert isinstance(model, LlamaModel)
    path = written(tmp_path / "a.gguf", fields=LORA, tensors=pair(inputs=64, outputs=64, rank=16))
    model.add_adapter_file("d1", path)
    use, state = AdapterUse(name="formal", digest="d1"), model.new_state(40)
    plain = state.nbytes
    budget.limit = Limit(budget.used_nbytes)
    with pytest.raises(BudgetExceeded, match="the target's keys and values"):
        model.forward([1, 2], state, adapter=use)
    assert (state.pending, state.nbytes) == (0, plain)
    budget.limit = None
    model.forward([1, 2], state, adapter=use)
    reported = model._weights.engine.log.sizes()
    assert set(reported) == {"compute"}, "the graph was reserved again"
    assert state.nbytes >= plain - 40_000
    model.forward([3], state, adapter=use)
    model.remove_adapter("d1")
    model.forward([3], state)
    assert state.nbytes == plain
    assert not [lease for lease in budget.leases if lease.name.startswith("adapter:")]


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_adapter_scales_that_are_not_finite_are_refused(gguf_opener: GgufOpener, tmp_path: Path, scale: float) -> None:
    from edgedecode.runtimes.llama.llama_model import LlamaModel

    model = gguf_opener(architecture="llama")
    assert isinstance(model, LlamaModel)
    path = written(tmp_path / "a.gguf", fields=LORA, tensors=pair(inputs=64, outputs=64))
    model.add_adapter_file("d1", path)
    with pytest.raises(InputError, match="scale must be a finite number"):
        model.forward([1], model.new_state(8), adapter=AdapterUse("formal", "d1", scale))
    model.close()
    with pytest.raises(CapabilityError, match="closed"):
        model.add_adapter_file("d1", path)
    model.remove_adapter("d1")


# -- temporary files -------------------------------------------------------------------------------------------------


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    with scratch_file("probe.gguf") as fresh:
        old = fresh.with_name("edgedecode-old-probe.gguf")
        old.write_bytes(b"x")
        past = time.time() - 2 * STALE_SECONDS
        os.utime(old, (past, past))
        with scratch_file("probe.gguf") as other:
            assert fresh.exists()
            assert other.exists()
            assert not old.exists()
    assert list((tmp_path / "scratch").iterdir()) == []
