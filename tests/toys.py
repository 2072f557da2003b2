"""Test doubles for the core: table models with padded rows, a wrapper of the decode loop, pairs that emit ASCII."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import AdapterUse, ModelCard, Output, RowRequest, State
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Rule, Verdict
from edgedecode.drafters.model_state import ModelStates
from edgedecode.drafters.source import DraftSetting
from edgedecode.memory.budget import Budget
from edgedecode.options import SessionDetails, SessionOptions
from edgedecode.pack.manifest import Generation
from edgedecode.pair import Pair
from edgedecode.runtimes.onnx.kernels.draw import NativeRowDraw
from edgedecode.runtimes.onnx.kernels.library import LIBRARY
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.row_draw import NumpyRowDraw, RowDraw
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, TableRuntime, toy_pair, toy_tables
from edgedecode.text.tokenizer import Tokenizer

GREEDY = SamplingOptions()
PADDING = 3
END = 2
"""Id of `<|im_end|>` in the byte tokenizer."""


def session_options(options: SessionOptions = SessionOptions(), /, **changes: Any) -> SessionOptions:  # noqa: B008
    """Return options with these changes, also those of their details."""
    rare = {name: changes.pop(name) for name in {each.name for each in fields(SessionDetails)} & changes.keys()}
    return replace(options, details=replace(options.details, **rare), **changes)


def padded(tables: tuple[FloatArray, ...], *, rows: int = PADDING) -> tuple[FloatArray, ...]:
    """Add rows above the vocabulary with the highest logits of all, so that sampling one of them fails a test."""
    first, second, third = tables
    tall = np.pad(first, ((0, 0), (0, rows)), constant_values=100.0)
    return tall, np.pad(second, ((0, 0), (0, rows))), np.pad(third, ((0, 0), (0, rows)))


def toy_model(vocabulary: int, *, seed: int = 0, scale: float = 2.0, context: int = 512) -> TableModel:
    """Return a table model with padded rows."""
    return TableModel(padded(toy_tables(vocabulary, seed=seed, scale=scale)), context=context)


def near_model(vocabulary: int, *, seed: int, noise: float, scale: float = 2.0) -> TableModel:
    """Return `toy_model(vocabulary, seed=seed, scale=scale)` with `noise` added to its tables."""
    base = toy_tables(vocabulary, seed=seed, scale=scale)
    return TableModel(toy_tables(vocabulary, seed=seed + 1000, scale=noise, near=base))


class TrimmedTable:
    """A table model with the logits of these ids only, like a trimmed draft."""

    def __init__(self, full: TableModel, ids: Sequence[int]) -> None:
        self.full, self.ids = full, np.array(ids, np.int64)
        self.card: ModelCard = replace(full.card, rows=len(ids), token_ids=self.ids)

    def new_state(self, capacity: int, *, rows: int = 1, tree: bool = False) -> State:
        return self.full.new_state(capacity, rows=rows, tree=tree)

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        output = self.full.forward(tokens, state, parents=parents, rows=rows, adapter=adapter)
        return Output(output.logits[:, self.ids])

    def close(self) -> None:
        self.full.close()


def trimmed_model(vocabulary: int, ids: Sequence[int], *, seed: int, noise: float, scale: float = 2.0) -> TrimmedTable:
    """Return `near_model` with the logits of these ids only."""
    return TrimmedTable(near_model(vocabulary, seed=seed, noise=noise, scale=scale), ids)


class ToyRuntime(TableRuntime):
    """A table runtime whose sessions sample with `quick_draw`."""

    def row_draw(self) -> RowDraw:
        return quick_draw()


def quick_draw() -> RowDraw:
    """Return the native sampler if the kernels were built, else numpy's.

    Both give the same tokens (test_native_draw.py); the native one takes a tenth of the time. It holds scratch memory,
    so each user needs a new one.
    """
    return NativeRowDraw(ctypes.CDLL(str(LIBRARY))) if LIBRARY.is_file() else NumpyRowDraw()


def draft_setting(
    vocabulary: int,
    *,
    model: TableModel | None = None,
    sampling: SamplingOptions = GREEDY,
    ends: frozenset[int] = frozenset(),
    sampled: bool = False,
    capacity: int = 512,
    budget: Budget | None = None,
    noise: Noise | None = None,
    states: ModelStates | None = None,
) -> DraftSetting:
    return DraftSetting(
        budget=budget or Budget(),
        sampling=sampling,
        vocabulary_size=vocabulary,
        capacity=capacity,
        draft_model=model,
        ends=ends,
        sampled=sampled,
        noise=noise,
        states=states or ModelStates(),
        row_draw=quick_draw(),
    )


class CallDrafter:
    """Propose the result of a function of (context, limit, rng), and record every proposal."""

    name = "call"
    nbytes = 0
    free = True

    def __init__(self, propose: Callable[[Sequence[int], int, UniformSource], Draft]) -> None:
        self._propose = propose
        self.drafts: list[Draft] = []
        self.limits: list[int] = []

    def begin(self, context: Sequence[int]) -> None:
        """Do nothing: there is no cache."""

    def unread(self, context: Sequence[int]) -> int:
        return 0

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self.limits.append(limit)
        self.drafts.append(self._propose(context, limit, rng))
        return self.drafts[-1]

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        assert tuple(context[-len(verdict.tokens) :]) == verdict.tokens

    def close(self) -> None:
        """Do nothing: there are no resources."""


@dataclass
class Run:
    """One generation: the new tokens, every round's verdict and the statistics."""

    tokens: list[int]
    verdicts: list[Verdict]
    stats: Stats


def run(
    model: TableModel,
    prompt: Sequence[int],
    *,
    max_tokens: int = 24,
    sampling: SamplingOptions = GREEDY,
    seed: int = 0,
    drafter: Drafter | None = None,
    draft_max: int = 0,
    rule: Rule = Rule.MATCH,
    ends: frozenset[int] = frozenset(),
    capacity: int | None = None,
) -> Run:
    """Decode after `prompt` with a fresh state, checking after every round that the state is a prefix of the tokens."""
    vocabulary = model.card.vocabulary_size
    state = model.new_state(capacity or model.card.context)
    tokens = list(prompt)
    setting = DecodeSetting(
        sampler=Sampler(sampling, vocabulary_size=vocabulary, row_draw=quick_draw()),
        noise=Noise(seed),
        drafting=None if drafter is None else Drafting.fixed(drafter, draft_max, noise=Noise(seed, stream=1)),
        rule=rule,
        ends=ends,
    )
    stats = Stats()
    verdicts = []
    for verdict in decode(model, state, tokens=tokens, max_tokens=max_tokens, setting=setting, stats=stats):
        assert state.pending == 0
        assert state.tokens == tokens[: state.length]
        if verdict is not None:
            verdicts.append(verdict)
    state.close()
    new = tokens[len(prompt) :]
    assert [token for verdict in verdicts for token in verdict.tokens] == new
    check_accounts(stats, emitted=len(new))
    return Run(new, verdicts, stats)


def check_accounts(stats: Stats, *, emitted: int) -> None:
    """Assert the identities that hold for every generation."""
    assert stats.accepted <= stats.proposed
    assert stats.corrections + stats.bonuses + stats.ended == stats.rounds
    assert stats.verified_tokens == emitted
    # Every round adds one token from the target, except a round that ended on a drafted token.
    assert stats.rounds - stats.ended <= emitted - stats.accepted <= stats.rounds


@cache
def ascii_tables(tokenizer: Tokenizer, *, seed: int, scale: float = 2.0, ending: float = 0.0) -> tuple[FloatArray, ...]:
    """Return tables that emit only printable ASCII or `<|im_end|>`, so that text and ids correspond."""
    tables = toy_tables(tokenizer.size, seed=seed, scale=scale)
    suppressed = [id for id in range(tokenizer.size) if not _printable(tokenizer, id)]
    tables[2][:, suppressed] -= 1000.0
    tables[2][:, END] += 1000.0 + ending
    return tables


@cache
def _near_tables(tokenizer: Tokenizer, *, seed: int, ending: float, noise: float) -> tuple[FloatArray, ...]:
    """Return `ascii_tables` plus noise. The cached tables must not be changed."""
    target = ascii_tables(tokenizer, seed=seed, ending=ending)
    return toy_tables(tokenizer.size, seed=seed + 1000, scale=noise, near=target)


def _printable(tokenizer: Tokenizer, id: int) -> bool:
    text = tokenizer.decode([id])
    return id not in tokenizer.special_ids and text != "" and all(" " <= character <= "~" for character in text)


@cache
def _base() -> Pair:
    """Return a pair from which others take the tokenizer and the manifest."""
    return toy_pair()


def ascii_pair(
    *,
    seed: int = 0,
    noise: float = 0.7,
    ending: float = 0.0,
    context: int = 512,
    generation: Generation | None = None,
    tokenizer: Tokenizer | None = None,
    budget: Budget | None = None,
) -> Pair:
    """Return a toy pair of `ascii_tables`; the draft is the target plus `noise`, `ending` the end token's bonus."""
    base = _base()
    tokenizer = tokenizer or base.tokenizer
    target = ascii_tables(tokenizer, seed=seed, ending=ending)
    draft = _near_tables(tokenizer, seed=seed, ending=ending, noise=noise)
    return Pair(
        replace(
            base.manifest, vocabulary_size=tokenizer.size, generation=generation or Generation(end_token_ids=(END, 0))
        ),
        Path(),
        tokenizer=tokenizer,
        runtime=ToyRuntime({"target": target, "draft": draft}, context=context),
        budget=budget or Budget(),
    )


def reference_row(
    row: FloatArray,
    *,
    vocabulary: int,
    options: SamplingOptions,
    seen: Sequence[int],
    generated: Sequence[int] = (),
    allowed: Sequence[bool] | None = None,
) -> list[float]:
    """Return the probability of each id, by a slow and obvious implementation of the documented order of steps.

    generated: the tokens that frequency and presence penalties count.
    """
    logits = [float(value) for value in row[:vocabulary]]
    if allowed is not None:
        logits = [value if good else -np.inf for value, good in zip(logits, allowed, strict=True)]
    for token, bias in options.logit_bias:
        logits[token] += -1e4 if bias == -100 else bias
    for token in {*seen, *generated}:
        value = logits[token]
        logits[token] = value / options.repetition_penalty if value > 0 else value * options.repetition_penalty
    for token in generated:
        logits[token] -= options.frequency_penalty
    for token in set(generated):
        logits[token] -= options.presence_penalty
    for token, length in repetitions([*seen, *generated], breakers=options.dry_sequence_breakers).items():
        if token < vocabulary and length >= options.dry_allowed_length:
            logits[token] -= options.dry_multiplier * options.dry_base ** (length - options.dry_allowed_length)
    if options.greedy:
        best = max(range(vocabulary), key=lambda id: (logits[id], -id))
        return [float(id == best) for id in range(vocabulary)]
    top = max(logits)
    weights = [float(np.exp((value - top) / options.temperature)) for value in logits]
    if options.top_n_sigma:
        least = top - options.top_n_sigma * float(np.std([value for value in logits if value > top - 1000]))
        weights = [weight if value >= least else 0.0 for weight, value in zip(weights, logits, strict=True)]
    if options.top_k:
        least = sorted(weights, reverse=True)[: options.top_k][-1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if options.top_p < 1:
        order = sorted(range(vocabulary), key=lambda id: -weights[id])
        mass, kept = 0.0, set()
        for id in order:
            kept.add(id)
            mass += weights[id] / sum(weights)
            if mass >= options.top_p:
                break
        weights = [weight if id in kept else 0.0 for id, weight in enumerate(weights)]
    weights = [weight if weight >= options.min_p * max(weights) else 0.0 for weight in weights]
    p = [weight / sum(weights) for weight in weights]
    if options.typical_p < 1:
        entropy = -sum(each * np.log(each) for each in p if each)
        order = sorted((id for id in range(vocabulary) if p[id]), key=lambda id: abs(-np.log(p[id]) - entropy))
        count = next(
            count for count in range(1, 1 + len(order)) if sum(p[id] for id in order[:count]) >= options.typical_p
        )
        p = [each if id in order[:count] else 0.0 for id, each in enumerate(p)]
        p = [each / sum(p) for each in p]
    top_choices = sorted((each, id) for id, each in enumerate(p) if each >= options.xtc_threshold)[1:]
    rest = [0.0 if (each, id) in top_choices else each for id, each in enumerate(p)]
    chance = options.xtc_probability
    return [(1 - chance) * each + chance * other / sum(rest) for each, other in zip(p, rest, strict=True)]


def repetitions(tokens: Sequence[int], *, breakers: Sequence[str | int]) -> dict[int, int]:
    """Return the tokens that would continue a repetition without breakers, each with the longest one's length."""
    found: dict[int, int] = {}
    for end in range(1, len(tokens)):
        for length in range(1, end + 1):
            part = tokens[end - length : end]
            if part == tokens[-length:] and not {*part, tokens[end]} & {*breakers}:
                found[tokens[end]] = max(length, found.get(tokens[end], 0))
    return found


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Return the nodes of a tree from a child of the root down to `node`; empty for -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]
