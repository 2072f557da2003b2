"""GGUF files with hostile headers: imported, and run where llama.cpp is installed."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from .ggufs import ARRAY, TEXT, File, Tensor, Value, sound, with_field, with_tensor
from .hostile import INTEGERS, TEXTS
from .running import BUDGET_NBYTES, Fuzz, fuzzed

ENGINE = importlib.util.find_spec("llama_cpp") is not None


def _plain(kind: int) -> bool:
    return kind != ARRAY


KINDS = st.integers(-1, 13)
ITEMS = st.one_of(INTEGERS, TEXTS, st.floats(width=32, allow_nan=True))
SCALARS = st.builds(Value, KINDS.filter(_plain), ITEMS)
ARRAYS = st.builds(
    Value, st.just(ARRAY), st.lists(ITEMS, max_size=3), st.integers(0, 12).filter(_plain), INTEGERS | st.none()
)


@dataclass(frozen=True)
class Change:
    """One change: of a field, a tensor, or the file as a whole."""

    what: str
    name: str = ""
    value: Any = None

    def __call__(self, file: File) -> File:
        if self.what == "field":
            return with_field(file, self.name, self.value)
        if self.what == "tensor":
            return with_tensor(file, self.name, self.value)
        if self.what == "typed":
            kept = file.fields.get(self.name, Value(TEXT, ""))
            return with_field(file, self.name, replace(kept, value=_fitting(kept, self.value)))
        return replace(file, **{self.what: self.value})


def _fitting(kept: Value, value: Any) -> Any:
    """Return `value` in the field's own type, which passes more checks than another type."""
    if kept.kind == ARRAY:
        return [*kept.value[: len(kept.value) // 2], value if isinstance(value, str) or kept.inner != TEXT else "x"]
    return value if isinstance(value, str) == (kept.kind == TEXT) else kept.value


SIZES = st.lists(st.one_of(st.sampled_from([0, 1, 31, 32, 33, 2**31, 2**40, 2**63]), st.integers(0, 400)), max_size=5)
FIELDS = st.sampled_from(sorted(sound().fields))
TENSORS = st.sampled_from(sorted(sound().tensors))
MORE = st.sampled_from(
    [
        *("llama.expert_count", "llama.expert_used_count", "llama.attention.sliding_window"),
        *("llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.rope.freq_base", "llama.attention.causal"),
        *("llama.pooling_type", "split.count", "general.type", "general.quantization_version"),
        *("tokenizer.ggml.scores", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_eos_token"),
        *("tokenizer.ggml.precompiled_charsmap", "general.license", ""),
    ]
)
CHANGES = st.one_of(
    st.builds(Change, st.just("typed"), FIELDS, INTEGERS | st.floats(width=32) | TEXTS),
    st.builds(Change, st.just("typed"), FIELDS, INTEGERS | st.integers(0, 100)),
    st.builds(Change, st.just("field"), FIELDS | MORE, SCALARS | ARRAYS | st.none()),
    st.builds(
        Change,
        st.just("tensor"),
        TENSORS | st.just("output.weight") | TEXTS,
        st.none() | st.builds(Tensor, SIZES.map(tuple), st.integers(-1, 45), st.none() | INTEGERS),
    ),
    st.builds(Change, st.sampled_from(["tensor_count", "field_count", "version"]), value=INTEGERS),
    st.builds(Change, st.just("keep"), value=st.integers(0, 999)),
    st.builds(Change, st.just("magic"), value=st.sampled_from([b"", b"FUGG", b"GGUF\0", b"ggml", b"PK\3\4"])),
)


def test_import_of_the_valid_gguf_file_succeeds(fuzz: Fuzz) -> None:
    (fuzz.fresh() / "model.gguf").write_bytes(sound().encoded)
    outcome = fuzz.check(*IMPORT, makes="pack", tries=False)
    assert outcome.code == 0, outcome.err
    if ENGINE:
        assert fuzz.check(*ANSWER, limit=BUDGET_NBYTES).code == 0


IMPORT = ("import", "--target", "model.gguf", "--out", "pack", "--copy")
ANSWER = ("generate", "-m", "pack", "--runtime", "llama", "-p", "hello", "-n", "2", "-t", "1", "--memory", "160MB")


@fuzzed("gguf")
@given(changes=st.lists(CHANGES, min_size=1, max_size=2))
def test_import_of_a_hostile_gguf_ends_in_one_line_or_an_answer(
    fuzz: Fuzz, changes: Sequence[Callable[[File], File]]
) -> None:
    file = reduce(lambda file, change: change(file), changes, sound())
    (fuzz.fresh() / "model.gguf").write_bytes(file.encoded)
    imported = fuzz.check(*IMPORT, makes="pack", tries=False)
    if imported.code == 0 and ENGINE:
        fuzz.check(*ANSWER, limit=BUDGET_NBYTES)
