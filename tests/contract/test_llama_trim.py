"""The trimmed draft on llama.cpp: the full draft's logits at the kept rows after any id, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import AdapterUse, LowRank
from edgedecode.errors import (
    BudgetExceeded,
    CapabilityError,
    EdgeDecodeError,
    InputError,
    ManifestError,
    RuntimeUnavailable,
)
from edgedecode.gguf.contents import BLOCKS, Contents, Tensor, read_contents
from edgedecode.gguf.encoding import F32
from edgedecode.gguf.header import EMBEDDING
from edgedecode.gguf.trimmed_gguf import trim_gguf
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.token_map import write_token_ids
from edgedecode.runtimes.llama.embeddings import DECODERS, EmbeddingTable, RowReader
from edgedecode.runtimes.llama.llama_engine import Engine
from tests.contract.conftest import GgufOpener, open_gguf
from tests.contract.reference import TOLERANCE, logits_of, settled
from tests.contract.toy_graph import ToyShape
from tests.small_tokenizers import byte_fallback, byte_level

pytest.importorskip("gguf", reason="the llama extra is not installed")
pytest.importorskip("llama_cpp", reason="the llama extra is not installed")

ROWS = 128
KEPT = np.array([0, 1, 2, 5, *range(40, 77), 99, 110, 126], np.int64)
"""44 ids: a number that does not suit the engine's kernels for several rows at once."""
TOKENS = [int(token) for token in np.random.default_rng(6).integers(0, ROWS, 200)]
MAP, FILE = "trim.ids", "trim.gguf"
ARCHITECTURES = ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "granite", "phi3", "smollm3"]


def kept_entry(entry: ModelEntry, root: Path, *, ids: np.ndarray = KEPT, file: bool = True) -> ModelEntry:
    """Trim an entry's GGUF file next to it; without `file` the entry names only the map."""
    write_token_ids(root / MAP, ids)
    if file:
        trim_gguf(root / entry.gguf, root / FILE, TrimmedVocabulary(ids, entry.rows))
    return replace(entry, trim=TrimEntry(size=len(ids), token_ids=MAP, gguf=FILE if file else ""))


@dataclass(frozen=True)
class Toys:
    """The full draft and the trimmed one, both open."""

    whole: Any
    trimmed: Any
    root: Path
    entry: ModelEntry


def toys(opener: GgufOpener, folder: Path, *, architecture: str, quantization: str = "", **shape: Any) -> Toys:
    sizes = ToyShape(**shape)
    entry = opener.entry(sizes, architecture, quantization)
    root = folder / f"{architecture}{quantization}"
    shutil.copytree(opener.root(sizes, architecture, quantization), root)
    entry = kept_entry(entry, root)
    whole = open_gguf(entry, root, budget=Budget())
    return Toys(whole, open_gguf(entry, root, budget=Budget(), needs=("tree", "trim")), root, entry)


@pytest.fixture(params=[*((name, "") for name in ARCHITECTURES), ("qwen2", "Q4_0"), ("gemma3", "Q8_0")], ids=str)
def pair(request: pytest.FixtureRequest, gguf_opener: GgufOpener, tmp_path: Path) -> Iterator[Toys]:
    architecture, quantization = request.param
    made = toys(gguf_opener, tmp_path, architecture=architecture, quantization=quantization)
    yield made
    made.whole.close()
    made.trimmed.close()


@pytest.fixture
def pack(gguf_opener: GgufOpener, tmp_path: Path) -> Path:
    gguf_opener.entry(ToyShape())
    return Path(shutil.copytree(gguf_opener.root(ToyShape()), tmp_path / "pack"))


@pytest.fixture
def entry(gguf_opener: GgufOpener, pack: Path) -> ModelEntry:
    return kept_entry(gguf_opener.entry(ToyShape()), pack)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a separate cache for built files, in which the engine has been probed."""
    monkeypatch.setattr(
        "edgedecode.runtimes.llama.files.cached_gguf.cache_folder", lambda name: folder_of(tmp_path / "cache")
    )
    return tmp_path / "cache"


def folder_of(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    return path


def close(found: FloatArray, wanted: FloatArray) -> None:
    """Assert equality up to rounding: kernels for another number of rows differ."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE)


# -- equal logits --------------------------------------------------------------------------------------------------


def test_trim_on_chains_equals_the_full_draft(pair: Toys) -> None:
    """After every id, including those that it cannot generate."""
    assert set(TOKENS) - set(KEPT.tolist())
    close(logits_of(pair.trimmed, TOKENS), logits_of(pair.whole, TOKENS)[:, KEPT])


def test_trim_in_pieces_and_single_rows(pair: Toys) -> None:
    found = []
    for model in (pair.trimmed, pair.whole):
        state, pieces = model.new_state(64), []
        for start, stop in ((0, 7), (7, 8), (8, 9), (9, 40)):
            pieces.append(model.forward(TOKENS[start:stop], state, rows="all").logits.copy())
            state.keep(range(stop - start))
        state.crop(20)
        pieces.append(model.forward(TOKENS[40:41], state).logits.copy())
        found.append(np.concatenate(pieces))
    close(found[0], found[1][:, KEPT])


def test_trim_on_trees(pair: Toys) -> None:
    parents = [-1, 0, 0, 1, 2, -1, 5, 3, 3, 4]
    found = []
    for model in (pair.trimmed, pair.whole):
        state = settled(model, TOKENS[:20], capacity=64)
        first = model.forward(TOKENS[30:36], state, parents=parents[:6], rows="all").logits.copy()
        later = model.forward(TOKENS[36:40], state, parents=parents[6:], rows="all").logits.copy()
        state.keep([0, 1, 3, 8])
        after = model.forward(TOKENS[50:52], state, rows="all").logits.copy()
        found.append(np.concatenate([first, later, after]))
    close(found[0], found[1][:, KEPT])


def test_trim_card(pair: Toys) -> None:
    card = pair.trimmed.card
    assert (card.rows, card.vocabulary_size) == (len(KEPT), ROWS)
    np.testing.assert_array_equal(card.token_ids, KEPT)
    assert pair.whole.card.token_ids is None
    assert card.weights_nbytes < pair.whole.card.weights_nbytes


@pytest.mark.parametrize("kv_type", ["float16", "int8"])
def test_trim_with_other_kv_types(gguf_opener: GgufOpener, tmp_path: Path, kv_type: str) -> None:
    made = toys(gguf_opener, tmp_path, architecture="llama", head_size=32)
    found = []
    for needs in (("trim",), ()):
        model = open_gguf(made.entry, made.root, budget=Budget(), needs=(*needs, f"kv:{kv_type}"))
        found.append(logits_of(model, TOKENS[:64]))
        model.close()
    close(found[0], found[1][:, KEPT])
    made.whole.close()
    made.trimmed.close()


def test_trim_with_adapters_equals_the_full_draft(pair: Toys) -> None:
    rng = np.random.default_rng(2)
    down, up = (rng.standard_normal(size).astype(np.float32) / 8 for size in ((4, 64), (64, 4)))
    use, found = AdapterUse("one", "1" * 64), []
    for model in (pair.trimmed, pair.whole):
        model.add_adapter(use.digest, [LowRank(0, "o_proj", down, up)])
        state = model.new_state(64)
        found.append(model.forward(TOKENS[:30], state, rows="all", adapter=use).logits.copy())
    close(found[0], found[1][:, KEPT])
    assert np.abs(found[1] - logits_of(pair.whole, TOKENS[:30])).max() > 100 * TOLERANCE


@pytest.mark.parametrize("bad", [[-1], [3, ROWS], [10**6]], ids=str)
def test_trim_refuses_ids_outside_the_full_vocabulary(pack: Path, entry: ModelEntry, bad: list[int]) -> None:
    model: Any = open_gguf(entry, pack, budget=Budget(), needs=("trim",))
    state = settled(model, TOKENS[:5], capacity=20)
    with pytest.raises(InputError, match="out of range: 0 to 127"):
        model.forward(bad, state)
    assert (state.length, state.pending) == (5, 0)
    close(model.forward([127], state).logits, logits_of(model, [*TOKENS[:5], 127])[-1:])
    model.close()


@pytest.mark.parametrize("kind", [*DECODERS, F32])
def test_table_rows_of_every_type_equal_the_gguf_package(kind: int, tmp_path: Path) -> None:
    """Random blocks: their scales may be any bits, so that some values are infinite or NaN; those are left out."""
    import gguf

    block, nbytes = BLOCKS[kind]
    stored = np.random.default_rng(kind).integers(0, 256, (6, 512 // block * nbytes), np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(kind)).astype(np.float32)
    path = tmp_path / "table"
    path.write_bytes(bytes(64) + stored.tobytes())
    contents = Contents({}, {}, {}, {EMBEDDING: Tensor(EMBEDDING, (512, 6), kind, 32)}, None, end=32)
    table = EmbeddingTable(path, contents, library=Engine().block_library())
    found = np.full((4, 512), 7, np.float32)
    RowReader(table, found).read([5, 0, 5])
    assert (found[3] == 7).all(), "rows beyond those read"
    known = np.isfinite(wanted[[5, 0, 5]])
    assert known.mean() > 0.3
    np.testing.assert_allclose(found[:3][known], wanted[[5, 0, 5]][known], rtol=1e-5)
    table.close()


# -- stock llama.cpp -----------------------------------------------------------------------------------------------

STOCK = """
import json, sys
import llama_cpp
import numpy as np

model = llama_cpp.Llama(sys.argv[1], n_ctx=64, n_threads=1, logits_all=True, verbose=False)
ids = json.loads(sys.argv[2])
model.eval(ids)
np.save(sys.argv[3], np.asarray(model.scores[: len(ids)]))
texts = [model.detokenize([row], special=True).decode("utf-8", "replace") for row in range(model.n_vocab())]
print(json.dumps({"texts": texts, "read": model.tokenize(b"quick", add_bos=False), "end": model.token_eos()}))
"""


def stock(path: Path, ids: list[int], out: Path) -> tuple[dict[str, Any], FloatArray]:
    """Open a file with the class `Llama` in a child process, with its vocabulary and its weights."""
    done = subprocess.run(
        [sys.executable, "-c", STOCK, str(path), json.dumps(ids), str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), np.load(out)


@pytest.mark.parametrize(("make", "architecture"), [(byte_level, "qwen2"), (byte_fallback, "gemma2")])
def test_trim_file_opens_in_stock_llama_cpp_as_a_model(
    make: Callable[[], Any], architecture: str, tmp_path: Path
) -> None:
    """With ids of the trimmed vocabulary it computes the same as on the full file."""
    from tests.contract.toy_gguf import write_toy_gguf

    inner = make()
    size = inner.get_vocab_size()
    entry = write_toy_gguf(tmp_path, ToyShape(rows=size), architecture=architecture, tokenizer=inner)
    least = 258 if make is byte_fallback else 0  # without its byte tokens the engine crashes on texts
    kept = np.unique([*range(least), *range(0, size, 3), size - 1])
    trim_gguf(tmp_path / entry.gguf, tmp_path / FILE, TrimmedVocabulary(kept, size))
    rows = [3, 1, 20, 7, 11, len(kept) - 1, 5]
    whole, wanted = stock(tmp_path / entry.gguf, [int(kept[row]) for row in rows], tmp_path / "whole.npy")
    trimmed, found = stock(tmp_path / FILE, rows, tmp_path / "trimmed.npy")
    assert trimmed["texts"] == [whole["texts"][id] for id in kept]
    letters = "".join(letter for letter in "quick" if letter in trimmed["texts"])
    for report, text in ((whole, "quick"), (trimmed, letters)):
        assert "".join(report["texts"][row] for row in report["read"]).strip() == text
    assert kept[trimmed["end"]] == whole["end"] == size - 1
    assert found.shape == (len(rows), len(kept))
    close(found, wanted[:, kept])


# -- memory --------------------------------------------------------------------------------------------------------


def test_trim_leases(pack: Path, entry: ModelEntry) -> None:
    budget, plain = Budget(), Budget()
    model: Any = open_gguf(entry, pack, budget=budget, needs=("trim",))
    assert not [lease for lease in budget.leases if lease.name.startswith(("kv:", "work:"))], (
        "nor of the first question"
    )
    state = model.new_state(100, rows=4)
    whole: Any = open_gguf(entry, pack, budget=plain)
    other = whole.new_state(100, rows=4)
    rows = state.context.plan.rows_per_pass
    work = [sum(lease.nbytes for lease in each.leases if lease.name == "work:target") for each in (budget, plain)]
    assert work[0] - work[1] == rows * (4 * 4 * 64 + 4 * 64)
    assert state.nbytes <= other.nbytes
    model.close()
    whole.close()
    assert [lease.name for lease in budget.leases] == ["llama.cpp code"]


def test_trim_that_does_not_fit_the_budget_is_refused(pack: Path, entry: ModelEntry) -> None:
    roomy = Budget()
    model = open_gguf(entry, pack, budget=roomy, needs=("trim",))
    used = roomy.used_nbytes
    model.close()
    for limit, words in ((10**6, "llama.cpp code"), (used + 1000, "kv:target")):
        budget = Budget(limit)
        with pytest.raises(BudgetExceeded, match=words):
            open_gguf(entry, pack, budget=budget, needs=("trim",))
        assert budget.leases == ()


def test_trim_maps_nothing_of_the_table(pack: Path, entry: ModelEntry) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("reads /proc/self/maps")
    model: Any = open_gguf(entry, pack, budget=Budget(), needs=("trim",))
    logits_of(model, TOKENS)
    mapped = maps.read_text()
    assert str(pack / FILE) in mapped
    assert str(pack / entry.gguf) not in mapped
    model.close()


# -- bad input -----------------------------------------------------------------------------------------------------


def another_map(entry: ModelEntry, root: Path) -> ModelEntry:
    write_token_ids(root / MAP, KEPT + 1)
    return entry


def another_draft(entry: ModelEntry, root: Path) -> ModelEntry:
    content = bytearray((root / entry.gguf).read_bytes())
    found = read_contents(root / entry.gguf)
    tensor = found.tensors["token_embd.weight"]
    for row in range(tensor.shape[1]):
        content[found.start + tensor.offset + row * tensor.nbytes // tensor.shape[1]] ^= 1
    (root / entry.gguf).write_bytes(content)
    return entry


def another_type(entry: ModelEntry, root: Path) -> ModelEntry:
    shutil.copy(root / FILE, root / entry.gguf)
    return replace(entry, rows=len(KEPT))


def truncated(entry: ModelEntry, root: Path) -> ModelEntry:
    (root / FILE).write_bytes((root / FILE).read_bytes()[:5000])
    return entry


def gone(name: str) -> Callable[[ModelEntry, Path], ModelEntry]:
    def remove(entry: ModelEntry, root: Path) -> ModelEntry:
        (root / name).unlink()
        return entry

    return remove


def sized(size: int) -> Callable[[ModelEntry, Path], ModelEntry]:
    return lambda entry, root: replace(entry, trim=TrimEntry(size=size, token_ids=MAP, gguf=FILE))


REFUSED: dict[str, tuple[Callable[[ModelEntry, Path], ModelEntry], type[EdgeDecodeError], str]] = {
    "no trim": (
        lambda entry, root: replace(entry, trim=None),
        CapabilityError,
        "no trimmed vocabulary.*`edgedecode trim`",
    ),
    "a map of another length": (sized(43), ManifestError, "maps 44 rows, the trimmed draft has 43"),
    "a missing map": (gone(MAP), ManifestError, "map of the trimmed draft .* cannot be read"),
    "a missing file": (gone(FILE), ManifestError, "trim.gguf cannot be read"),
    "a truncated file": (truncated, ManifestError, "trim.gguf is truncated"),
    "another map's file": (another_map, ManifestError, "not trimmed with the pack's map"),
    "another draft's file": (another_draft, ManifestError, "made from another draft"),
    "a full draft that is trimmed": (another_type, ManifestError, "does not fit the draft|another shape"),
    "an architecture without embedding input": (
        lambda entry, root: replace(entry, architecture="gemma3n"),
        CapabilityError,
        "cannot take embeddings as input .*gemma3n.*--runtime onnx",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_trim_that_does_not_fit_is_a_one_line_error(case: str, pack: Path, entry: ModelEntry) -> None:
    change, error, words = REFUSED[case]
    changed = change(entry, pack)
    budget = Budget()
    with pytest.raises(error, match=words) as caught:
        open_gguf(changed, pack, budget=budget, needs=("trim",))
    assert "\n" not in str(caught.value)
    assert budget.leases == ()


def test_trim_takes_the_architecture_from_the_file(gguf_opener: GgufOpener, tmp_path: Path) -> None:
    """The manifest may name an unknown class."""
    shape = ToyShape()
    entry = replace(gguf_opener.entry(shape, "mamba"), architecture="UnheardOfForCausalLM")
    root = Path(shutil.copytree(gguf_opener.root(shape, "mamba"), tmp_path / "mamba"))
    budget = Budget()
    with pytest.raises(CapabilityError, match=r"cannot take embeddings as input for the model target \(mamba\)"):
        open_gguf(kept_entry(entry, root, file=False), root, budget=budget, needs=("trim",))
    assert budget.leases == ()


def test_trim_refuses_an_engine_that_treats_embedding_rows_differently(
    gguf_opener: GgufOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise only worse drafts would show it."""
    monkeypatch.setattr("edgedecode.runtimes.llama.feeding.sqrt", lambda width: 3.0)
    with pytest.raises(CapabilityError, match="different logits from an embedding row of the model target"):
        toys(gguf_opener, tmp_path, architecture="gemma3")


def test_table_of_a_type_that_cannot_be_decoded_is_refused(
    pack: Path, entry: ModelEntry, gguf_opener: GgufOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.runtimes.llama.embeddings.F32", -1)
    budget = Budget()
    with pytest.raises(CapabilityError, match=r"tensor type 0, which this llama\.cpp cannot decode"):
        open_gguf(entry, pack, budget=budget, needs=("trim",))
    assert budget.leases == ()


def test_table_that_shrinks_is_an_error_and_not_a_crash(pack: Path, entry: ModelEntry) -> None:
    model: Any = open_gguf(entry, pack, budget=Budget(), needs=("trim",))
    state = settled(model, TOKENS[:5], capacity=20)
    whole = (pack / entry.gguf).read_bytes()
    (pack / entry.gguf).write_bytes(whole[:4000])
    with pytest.raises(EdgeDecodeError, match="became shorter while in use"):
        model.forward([126], state)
    (pack / entry.gguf).write_bytes(whole)
    assert (state.length, state.pending) == (5, 0)
    close(model.forward([126], state).logits, logits_of(model, [*TOKENS[:5], 126])[-1:])
    model.close()


def test_table_that_becomes_unreadable_is_a_one_line_error(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(bytes(64))
    contents = Contents({}, {}, {}, {EMBEDDING: Tensor(EMBEDDING, (4, 4), F32, 0)}, None, end=0)
    table = EmbeddingTable(path, contents, library=Engine().block_library())
    read, write = os.pipe()
    os.dup2(read, table.file.fileno())  # a pipe refuses to seek
    with pytest.raises(RuntimeUnavailable, match=r"table cannot be read any more \(Illegal seek\): start again"):
        RowReader(table, np.empty((2, 4), np.float32)).read([1])
    table.close()
    os.close(read)
    os.close(write)


def test_trim_refusals_before_opening(pack: Path, entry: ModelEntry) -> None:
    from edgedecode.runtimes.llama import LlamaRuntime

    def refusal(entry: ModelEntry, *needs: str) -> str:
        found = LlamaRuntime.refusal(entry, pack, name="draft", provider="cpu", needs=needs)
        return "" if found is None else found.reason

    assert refusal(entry, "trim") == ""
    assert "no trimmed vocabulary of the model draft" in refusal(replace(entry, trim=None), "trim")
    assert "cannot take embeddings" in refusal(replace(entry, architecture="mamba"), "trim")
