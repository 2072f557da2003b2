"""Verified decoding equals plain decoding: the same tokens with any drafter and length, greedy or with the same seed.

Every row of the targets has padding that would win if it were not ignored; the next pass overwrites every view.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.drafters.model_drafter import ModelDrafter, ModelSource
from edgedecode.drafters.recycle import RecycleSource
from edgedecode.drafters.source import DrafterSource
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.drafters.tree_drafter import TreeSource
from edgedecode.drafters.trim import TrimSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel
from tests.toys import GREEDY, CallDrafter, Run, draft_setting, near_model, quick_draw, run, toy_model, trimmed_model

VOCABULARY = 24
LENGTHS = (1, 2, 4, 8, 16)
PROMPT = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
NEW = 40
TARGET_SEED = 7

PROCESSING = {
    "greedy": GREEDY,
    "greedy, penalty": SamplingOptions(repetition_penalty=1.3),
    "sampled": SamplingOptions(temperature=0.8),
    "sampled, penalty of the last tokens": SamplingOptions(temperature=0.8, frequency_penalty=1.5, penalty_window=7),
    "sampled, penalty": SamplingOptions(temperature=0.8, repetition_penalty=1.2),
    "top-k": SamplingOptions(temperature=1.0, top_k=3),
    "top-n-sigma": SamplingOptions(temperature=1.5, top_n_sigma=1.2),
    "top-p, min-p": SamplingOptions(temperature=0.9, top_p=0.8, min_p=0.02),
    "typical": SamplingOptions(temperature=0.8, typical_p=0.6),
    "top choices excluded": SamplingOptions(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.05),
    "surprise": SamplingOptions(temperature=0.9, mirostat=2, mirostat_tau=1.5, mirostat_eta=0.3),
    "repetitions": SamplingOptions(temperature=0.8, dry_multiplier=1.5, dry_sequence_breakers=(4,)),
    "greedy, repetitions": SamplingOptions(dry_multiplier=1.5, dry_allowed_length=1, dry_penalty_last_n=12),
    "greedy, counts": SamplingOptions(frequency_penalty=0.4, presence_penalty=-0.6),
    "sampled, counts and bias": SamplingOptions(
        temperature=0.8, frequency_penalty=0.3, presence_penalty=0.7, logit_bias={3: -100, 5: 1.5, 6: -0.5}
    ),
    "everything": SamplingOptions(
        temperature=1.1,
        top_k=8,
        top_p=0.9,
        min_p=0.01,
        top_n_sigma=2.0,
        typical_p=0.9,
        xtc_probability=0.4,
        mirostat=2,
        mirostat_tau=2.0,
        dry_multiplier=0.4,
        repetition_penalty=0.9,
        frequency_penalty=-0.2,
        presence_penalty=0.3,
        logit_bias={2: 1.0},
    ),
}
QUALITIES = ("equal", "differs", "hostile")
LOOKUPS = ("suffix", "recycle")
MODELS = ("model", "grown", "trimmed")
KINDS = (*MODELS, "chain", "tree", "random", *LOOKUPS)
SEED = 11


def target() -> TableModel:
    return toy_model(VOCABULARY, seed=TARGET_SEED)


def plain(options: SamplingOptions, *, prompt: Sequence[int] = PROMPT, max_tokens: int = NEW, **setting: object) -> Run:
    return run(target(), prompt, max_tokens=max_tokens, sampling=options, seed=SEED, **setting)  # type: ignore[arg-type]


def guess(truth: Sequence[int], place: int, *, quality: str) -> int:
    """Return the token that a script proposes for `place`; beyond the truth's end, any token."""
    right = truth[place] if place < len(truth) else place % VOCABULARY
    wrong = quality == "hostile" or (quality == "differs" and place % 3 == 0)
    return (right + 1) % VOCABULARY if wrong else right


def scripted(truth: Sequence[int], *, kind: str, quality: str, rng: np.random.Generator) -> CallDrafter:
    """Return a drafter that knows the truth and proposes a chain, a comb (a path with siblings) or a random tree."""

    def chain(context: Sequence[int], limit: int) -> Draft:
        start = len(context)
        return Draft(tuple(guess(truth, start + step, quality=quality) for step in range(limit)), source=kind)

    def comb(context: Sequence[int], limit: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        while len(tokens) < limit:
            depth = len(context) + (len(tokens) // 2)
            tokens.append((guess(truth, depth, quality="equal") + 2) % VOCABULARY)  # a sibling that is never right
            parents.append(parent)
            if len(tokens) < limit:
                tokens.append(guess(truth, depth, quality=quality))
                parents.append(parent)
                parent = len(tokens) - 1
        return Draft(tuple(tokens), parents=tuple(parents), source=kind)

    def random_tree(context: Sequence[int], limit: int) -> Draft:
        parents = tuple(int(rng.integers(-1, index)) for index in range(limit))
        depths: list[int] = []
        for parent in parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        tokens = []
        for depth in depths:
            right = guess(truth, len(context) + depth, quality="equal")
            hidden = quality == "hostile" or (quality == "differs" and rng.random() < 0.5)
            tokens.append((right + 1 + int(rng.integers(0, 5))) % VOCABULARY if hidden else right)
        return Draft(tuple(tokens), parents=parents, source=kind)

    shape: Callable[[Sequence[int], int], Draft] = {"chain": chain, "tree": comb, "random": random_tree}[kind]
    return CallDrafter(lambda context, limit, rng: shape(context, limit))


def drafter(kind: str, *, quality: str, truth: Sequence[int], options: SamplingOptions) -> Drafter:
    if kind in LOOKUPS:
        return lookup(kind)
    if kind in MODELS:
        seed, noise = (TARGET_SEED, {"equal": 0.0, "differs": 0.8}.get(quality, 0.0))
        kept = range(VOCABULARY) if quality == "equal" else range(0, VOCABULARY, 2)
        seed += 50 if quality == "hostile" else 0
        model: LanguageModel = near_model(VOCABULARY, seed=seed, noise=noise)
        if kind == "trimmed":
            model = trimmed_model(VOCABULARY, kept, seed=seed, noise=noise)
        setting = draft_setting(VOCABULARY, model=model, sampling=options, noise=Noise(SEED))
        sources: dict[str, DrafterSource] = {"model": ModelSource(), "grown": TreeSource(), "trimmed": TrimSource()}
        return sources[kind].open(replace(setting, tree=kind == "grown"))
    return scripted(truth, kind=kind, quality=quality, rng=np.random.default_rng(3))


def lookup(kind: str) -> Drafter:
    sources: dict[str, DrafterSource] = {"suffix": SuffixSource(), "recycle": RecycleSource()}
    return sources[kind].open(draft_setting(VOCABULARY))


@dataclass
class Seen:
    """Counters of the covered cases over all runs of a test."""

    rejections: int = 0
    bonuses: int = 0
    full: int = 0
    runs: list[Stats] = field(default_factory=list)

    def add(self, found: Run) -> None:
        self.runs.append(found.stats)
        drafted = [verdict for verdict in found.verdicts if len(verdict.draft)]
        self.rejections += sum(verdict.outcome is Outcome.CORRECTION for verdict in drafted)
        self.bonuses += sum(verdict.outcome is Outcome.BONUS for verdict in drafted)
        self.full += sum(verdict.accepted == len(verdict.draft) for verdict in drafted)

    @property
    def accepted(self) -> int:
        return sum(stats.accepted for stats in self.runs)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSING)
@pytest.mark.parametrize(
    ("kind", "quality"),
    [(kind, quality) for kind in KINDS for quality in (QUALITIES if kind not in LOOKUPS else ("hostile",))],
)
def test_decode_equals_plain_decoding_token_for_token(kind: str, quality: str, name: str) -> None:
    options = PROCESSING[name]
    expected = plain(options).tokens
    seen = Seen()
    for length in LENGTHS:
        proposer = drafter(kind, quality=quality, truth=PROMPT + expected, options=options)
        found = plain(options, drafter=proposer, draft_max=length)
        assert found.tokens == expected, length
        seen.add(found)
    if (
        kind in ("model", "chain") and quality == "equal"
    ):  # also when sampling: the model samples with the target's noise
        assert seen.full == seen.bonuses > 0
        assert seen.rejections == 0
        assert min(stats.rounds for stats in seen.runs) <= 1 + -(-NEW // (max(LENGTHS) + 1))
    elif kind == "tree" and quality == "equal":
        assert seen.accepted > 0
        assert seen.bonuses > 0
    elif quality == "differs" and kind not in LOOKUPS:
        assert seen.rejections > 0
        assert seen.accepted > 0
    elif quality == "hostile" and kind in ("chain", "tree"):
        assert seen.rejections > 0
        assert seen.accepted == 0
    elif quality == "hostile":
        assert seen.rejections > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSING)
def test_decode_with_accepted_siblings_equals_plain_decoding(name: str) -> None:
    """Trees of an often wrong draft model, whose second guesses are accepted too."""
    options = PROCESSING[name]
    expected = plain(options, max_tokens=120).tokens
    siblings = 0
    for nodes in (4, 16):
        proposer = drafter("grown", quality="differs", truth=(), options=options)
        drafting = Drafting.fixed(proposer, nodes, noise=Noise(SEED, stream=1))
        verdicts = decoded(drafting, options, max_tokens=120)
        assert [token for verdict in verdicts for token in verdict.tokens] == expected
        siblings += sum(accepted_siblings(verdict) for verdict in verdicts)
    assert siblings > 0


def decoded(drafting: Drafting, options: SamplingOptions, *, max_tokens: int) -> list[Verdict]:
    model = target()
    sampler = Sampler(options, vocabulary_size=VOCABULARY, row_draw=quick_draw())
    setting = DecodeSetting(sampler=sampler, noise=Noise(SEED), drafting=drafting)
    state = model.new_state(model.card.context)
    return list(decode(model, state, tokens=list(PROMPT), max_tokens=max_tokens, setting=setting, stats=Stats()))


def accepted_siblings(verdict: Verdict) -> int:
    """Count accepted nodes that are not their parent's first child."""
    parents = verdict.draft.parents
    return 0 if parents is None else sum(parents[node] in parents[:node] for node in verdict.path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOKUPS)
def test_decode_accepts_and_rejects_lookup_drafts(kind: str) -> None:
    """Random tables hardly repeat, so lookups get repetitive prompts and a target that follows them."""
    seen = Seen()
    for name, options in PROCESSING.items():
        for seed in range(3):
            model = TableModel(tuple(table * np.float32(3) for table in _cycling(seed)))
            again = TableModel(tuple(table * np.float32(3) for table in _cycling(seed)))
            prompt = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
            expected = run(model, prompt, max_tokens=NEW, sampling=options, seed=SEED).tokens
            for length in LENGTHS:
                proposer = lookup(kind)
                found = run(
                    again, prompt, max_tokens=NEW, sampling=options, seed=SEED, drafter=proposer, draft_max=length
                )
                assert found.tokens == expected, (name, seed, length)
                seen.add(found)
    assert min(seen.rejections, seen.bonuses, seen.full) > 50


def _cycling(seed: int) -> tuple[npt.NDArray[np.float32], ...]:
    """Return tables whose text mostly cycles 0, 1, 2, 3, 0, … with detours."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((8, 8)).astype(np.float32)
    for token in range(4):
        first[token, (token + 1) % 4] += 2
    for token in range(4, 8):
        first[token, 0] += 2
    return first, 0.5 * rng.standard_normal((8, 8)).astype(np.float32), np.zeros((7, 8), dtype=np.float32)


@given(
    seed=st.integers(0, 2**32),
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12),
    length=st.integers(1, 12),
    options=st.sampled_from(list(PROCESSING.values())),
    data=st.data(),
)
@settings(max_examples=60)
def test_decode_with_arbitrary_drafts_equals_plain_decoding(
    seed: int, prompt: list[int], length: int, options: SamplingOptions, data: st.DataObject
) -> None:
    expected = run(target(), prompt, max_tokens=16, sampling=options, seed=seed).tokens
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))

    def propose(context: Sequence[int], limit: int, noise: object) -> Draft:
        nodes = int(rng.integers(0, limit + 1))
        chained = bool(rng.integers(0, 2))
        parents = None if chained else tuple(int(rng.integers(-1, index)) for index in range(nodes))
        place = len(context) - len(prompt)
        likely = expected[place : place + nodes] + [0] * nodes
        tokens = [likely[index] if rng.random() < 0.6 else int(rng.integers(0, VOCABULARY)) for index in range(nodes)]
        return Draft(tuple(tokens), parents=parents)

    proposer = CallDrafter(propose)
    found = run(target(), prompt, max_tokens=16, sampling=options, seed=seed, drafter=proposer, draft_max=length)
    assert found.tokens == expected


@pytest.mark.parametrize("kind", ["chain", "tree", "model"])
@pytest.mark.parametrize("name", ["greedy", "sampled"])
def test_decode_ends_at_an_end_token_inside_a_draft(name: str, kind: str) -> None:
    options = PROCESSING[name]
    whole = plain(options).tokens
    inside = corrected = 0
    for end in sorted(set(whole)):
        expected = plain(options, ends=frozenset({end})).tokens
        assert expected == whole[: whole.index(end) + 1]
        for length in (2, 16):
            for quality in ("equal", "differs"):
                proposer = drafter(kind, quality=quality, truth=PROMPT + whole, options=options)
                found = plain(options, ends=frozenset({end}), drafter=proposer, draft_max=length)
                assert found.tokens == expected
                last = found.verdicts[-1]
                assert last.outcome is Outcome.ENDED
                assert found.stats.ended == 1
                inside += last.accepted == len(last.tokens) > 0
                corrected += last.accepted < len(last.tokens)
    assert inside > 0  # the end token was drafted, with more tokens after it
    assert corrected > 0


@pytest.mark.parametrize("kind", KINDS)
def test_decode_keeps_a_limit_inside_a_draft(kind: str) -> None:
    options = PROCESSING["sampled"]
    whole = plain(options).tokens
    cut = 0
    for max_tokens in (1, 2, 3, 5, 8, 13):
        for length in LENGTHS:
            inner = drafter(kind, quality="equal", truth=PROMPT + whole, options=options)
            proposer = CallDrafter(inner.propose)
            inner.begin(PROMPT)
            by_count = plain(options, max_tokens=max_tokens, drafter=proposer, draft_max=length)
            assert by_count.tokens == whole[:max_tokens]
            inner.begin(PROMPT)
            capacity = len(PROMPT) + max_tokens
            by_context = plain(options, capacity=capacity, drafter=proposer, draft_max=length)
            assert by_context.tokens == whole[:max_tokens]
            assert all(len(draft) <= limit for draft, limit in zip(proposer.drafts, proposer.limits, strict=True))
            assert sum(len(verdict.tokens) for verdict in by_count.verdicts) == max_tokens
            cut += sum(limit < length for limit in proposer.limits)
    assert cut > 0


def test_model_drafter_never_drafts_past_an_end_token() -> None:
    whole = plain(GREEDY).tokens
    stopped = 0
    for end in set(whole):
        model = near_model(VOCABULARY, seed=TARGET_SEED, noise=0.5)
        proposer = ModelDrafter(model, draft_setting(VOCABULARY, model=model, ends=frozenset({end})))
        found = plain(GREEDY, ends=frozenset({end}), drafter=proposer, draft_max=16)
        for verdict in found.verdicts:
            assert end not in verdict.draft.tokens[:-1]
            stopped += end in verdict.draft.tokens
    assert stopped > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, options in PROCESSING.items() if not options.greedy])
def test_shared_noise_is_accepted_more_often_than_the_arg_max(name: str) -> None:
    """Similar models at a temperature where the arg-max is often wrong; the text is the same with any draft."""
    options = replace(PROCESSING[name], temperature=2.0)
    accepted = {"shared": 0, "arg-max": 0}
    proposed = dict(accepted)
    for seed in range(12):
        expected = run(toy_model(VOCABULARY, seed=seed), PROMPT, max_tokens=NEW, sampling=options, seed=SEED).tokens
        for way, noise in (("shared", Noise(SEED)), ("arg-max", None)):
            model = near_model(VOCABULARY, seed=seed, noise=0.3)
            proposer = ModelDrafter(model, draft_setting(VOCABULARY, model=model, sampling=options, noise=noise))
            found = run(
                toy_model(VOCABULARY, seed=seed),
                PROMPT,
                max_tokens=NEW,
                sampling=options,
                seed=SEED,
                drafter=proposer,
                draft_max=2,
            )
            assert found.tokens == expected
            accepted[way] += found.stats.accepted
            proposed[way] += found.stats.proposed
    assert accepted["shared"] / proposed["shared"] > accepted["arg-max"] / proposed["arg-max"]
    assert accepted["arg-max"] > 0
