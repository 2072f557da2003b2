"""Public test doubles: a toy model that detects stale caches, a byte tokenizer, scripted drafters, a toy pair.

For tests of edgedecode and of programs that use it. Pure Python and numpy; downloads nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import Draft, check_parents
from edgedecode.decoding.model import AdapterUse, ModelCard, Output, RowRequest, State
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.engines.interface import Device, ModelRequest
from edgedecode.errors import CapabilityError
from edgedecode.memory.budget import Budget, Lease
from edgedecode.pack.manifest import Generation, Graph, Manifest, ModelEntry
from edgedecode.pair import Pair
from edgedecode.sampling.probs import UniformSource
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

__all__ = ["ScriptedDrafter", "TableModel", "TableRuntime", "TableState", "byte_tokenizer", "toy_pair", "toy_tables"]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_POSITIONS = 7


class TableState:
    """Stores the tokens, as settled list and pending tree; charges 8 bytes per position to the budget."""

    oldest_crop = 0

    def __init__(self, capacity: int, lease: Lease) -> None:
        self.capacity = capacity
        self.tokens: list[int] = []
        self.rows: list[int] = []
        self.parents: list[int] = []
        self._lease = lease

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def keep(self, path: Sequence[int]) -> None:
        previous = -1
        for index in path:
            if not 0 <= index < self.pending or self.parents[index] != previous:
                raise ValueError(f"{list(path)} is not a path from the root of the pending rows")
            previous = index
        self.tokens += [self.rows[index] for index in path]
        self._drop()

    def crop(self, length: int) -> None:
        self._drop()
        if not 0 <= length <= len(self.tokens):
            raise CapabilityError(f"cannot crop {len(self.tokens)} positions to {length}")
        del self.tokens[length:]

    def close(self) -> None:
        self._lease.release()

    def _drop(self) -> None:
        self.rows.clear()
        self.parents.clear()


class TableModel:
    """An order-2 Markov model over tables that also depends on the position, so that a stale cache changes its output.

    logits after a row = first[token] + second[previous token] + third[position mod 7]. `first`, `second`: float32
    [vocabulary, rows]; `third`: [7, rows]. The next forward overwrites the output buffer with NaN, to detect views that
    are used too late. `passes` records the width of every forward, `rows_made` the number of logits rows computed.
    """

    def __init__(self, tables: tuple[FloatArray, ...], *, context: int = 512, budget: Budget | None = None) -> None:
        self._first, self._second, self._third = tables
        self._budget = budget or Budget()
        self._last: FloatArray = np.empty((0, 0), dtype=np.float32)
        self.passes: list[int] = []
        self.rows_made = 0
        rows = self._first.shape[1]
        self.card = ModelCard(
            name="table", rows=rows, vocabulary_size=len(self._first), context=context, row_invariant=True
        )

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> TableState:
        if capacity > self.card.context:
            raise CapabilityError(f"a state of {capacity} positions: this model allows {self.card.context}")
        return TableState(capacity, self._budget.reserve("kv:table", 8 * capacity))

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        assert isinstance(state, TableState)
        if adapter is not None:
            raise CapabilityError("the toy model has no adapters")
        if not tokens or not all(0 <= token < self.card.rows for token in tokens):
            raise ValueError(f"tokens {list(tokens)} are empty or out of range")
        if state.length + state.pending + len(tokens) > state.capacity:
            raise CapabilityError(f"{len(tokens)} rows do not fit a state of {state.capacity}")
        start = state.pending
        appended = list(range(start - 1, start - 1 + len(tokens))) if parents is None else list(parents)
        check_parents([*state.parents, *appended], length=start + len(tokens))
        state.rows += tokens
        state.parents += appended
        self.passes.append(len(tokens))
        wanted = _row_indices(rows, len(tokens))
        self._last[...] = np.nan
        self._last = np.array([self._row(state, start + index) for index in wanted], dtype=np.float32)
        self.rows_made += len(wanted)
        return Output(self._last.reshape(len(wanted), self.card.rows))

    def close(self) -> None:
        """Do nothing: it holds no resources."""

    def logits_after(self, tokens: Sequence[int]) -> FloatArray:
        """Return the logits after a full sequence, computed without a state, as a reference."""
        before = tokens[-2] if len(tokens) > 1 else 0
        row: FloatArray = self._first[tokens[-1]] + self._second[before] + self._third[(len(tokens) - 1) % _POSITIONS]
        return row

    def _row(self, state: TableState, index: int) -> FloatArray:
        depth, node = 0, index
        while (node := state.parents[node]) >= 0:
            depth += 1
        parent = state.parents[index]
        before = state.rows[parent] if parent >= 0 else (state.tokens or [0])[-1]
        position = state.length + depth
        row: FloatArray = self._first[state.rows[index]] + self._second[before] + self._third[position % _POSITIONS]
        return row


def _row_indices(rows: RowRequest, width: int) -> Sequence[int]:
    if isinstance(rows, str):
        return {"none": range(0), "last": range(width - 1, width), "all": range(width)}[rows]
    return rows


def toy_tables(
    vocabulary: int, *, seed: int, scale: float = 2.0, near: tuple[FloatArray, ...] | None = None
) -> tuple[FloatArray, ...]:
    """Return random tables for `TableModel`. near: tables to which the random ones are added, for a similar draft."""
    rng = np.random.default_rng(seed)
    shapes = ((vocabulary, vocabulary), (vocabulary, vocabulary), (_POSITIONS, vocabulary))
    tables = tuple((scale * rng.standard_normal(shape)).astype(np.float32) for shape in shapes)
    return tables if near is None else tuple(base + table for base, table in zip(near, tables, strict=True))


class ScriptedDrafter(Drafter):
    """Proposes drafts from `script`, which maps context lengths to drafts; records every verdict."""

    name = "scripted"
    nbytes = 0
    free = True

    def __init__(self, script: Mapping[int, Draft]) -> None:
        self.script = script
        self.verdicts: list[Verdict] = []

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        return self.script.get(len(context), Draft())

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        self.verdicts.append(verdict)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token per byte and ChatML's special tokens (ids 0, 1, 2): 259 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return Tokenizer(backend, chat_template=ChatTemplate(CHATML))


class TableRuntime:
    """A runtime of table models, one per role."""

    name = "table"

    def __init__(self, models_by_role: Mapping[str, tuple[FloatArray, ...]], *, context: int = 512) -> None:
        self._tables = models_by_role
        self._context = context
        self.opened: list[str] = []
        self._models: list[TableModel] = []

    def devices(self) -> Sequence[Device]:
        return [Device(runtime=self.name, provider="cpu", description="tables", available=True)]

    def open(self, request: ModelRequest) -> TableModel:
        if request.provider != "cpu":
            raise CapabilityError(f"the runtime {self.name!r} has no provider {request.provider!r}; it has: cpu")
        if missing := set(request.needs) - {"tree"}:
            raise CapabilityError(f"a table model does not support {', '.join(sorted(missing))}")
        self.opened.append(request.name)
        self._models.append(TableModel(self._tables[request.name], context=self._context, budget=request.budget))
        return self._models[-1]

    def passes(self) -> float:
        """Return the number of passes so far; one of a draft model counts as a tenth."""
        counted = zip(self.opened, self._models, strict=True)
        return sum(len(model.passes) * (1.0 if role == "target" else 0.1) for role, model in counted)


def toy_pair(
    *,
    seed: int = 0,
    draft_noise: float = 1.0,
    budget: Budget | None = None,
    generation: Generation | None = None,
    context: int = 512,
    pass_seconds: float | None = None,
) -> Pair:
    """Return a pair of table models over the byte tokenizer; `draft_noise` 0 makes the draft equal the target.

    pass_seconds: use a virtual clock on which a pass of the target takes so long, one of the draft a tenth, and nothing
    else takes time. So the scheduler plans as on a device, the same in every run. None: the real clock, on which passes
    take microseconds and no draft pays.
    """
    tokenizer = byte_tokenizer()
    target = toy_tables(tokenizer.size, seed=seed)
    draft = toy_tables(tokenizer.size, seed=seed + 1, scale=draft_noise, near=target)
    manifest = _toy_manifest(tokenizer, generation or Generation(end_token_ids=(2, 0)), context=context)
    runtime = TableRuntime({"target": target, "draft": draft}, context=context)
    pair = Pair(manifest, Path(), tokenizer=tokenizer, runtime=runtime, budget=budget or Budget())
    if pass_seconds is not None:
        pair.shared.clock = lambda: pass_seconds * runtime.passes()
    return pair


def _toy_manifest(tokenizer: Tokenizer, generation: Generation, *, context: int) -> Manifest:
    graph = Graph("base.onnx", inputs=("input_ids",), outputs=("logits",), capabilities=("tree", "rows"))
    entry = ModelEntry(
        architecture="table",
        rows=tokenizer.size,
        context=context,
        hidden_size=1,
        layers=1,
        kv_heads=1,
        head_size=1,
        parameters=1,
        weights="weights.bin",
        graphs={"base": graph},
        bits=32,
        block_size=0,
        head_bits=32,
        license="apache-2.0",
        source="toy",
    )
    return Manifest(
        name="toy",
        created_by="edgedecode.testing",
        tokenizer="tokenizer.json",
        tokenizer_digest=tokenizer.digest,
        vocabulary_size=tokenizer.size,
        chat_template=None,
        generation=generation,
        models={"target": entry, "draft": entry},
        files={},
    )
