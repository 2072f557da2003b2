"""The decode loop that goes into bundles: its text is the target's own, whatever the drafts."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgedecode
from edgedecode import Pair
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.loop import DecodeSetting
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.stats import Stats
from edgedecode.drafters.model_drafter import ModelDrafter
from edgedecode.export.bundles.device.decode import Round, decode, likeliest
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import TableModel, toy_tables
from tests.toys import draft_setting

Logits = npt.NDArray[np.float32]
VOCABULARY = 7
CAPACITY = 48


class Toy:
    """A model whose logits are a fixed random function of all tokens so far."""

    def __init__(self, seed: int, *, context: int = 64) -> None:
        self.seed, self.context, self.tokens, self.passes = seed, context, list[int](), 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def read(self, tokens: Sequence[int], *, scored: int) -> Logits:
        assert tokens
        assert self.length + len(tokens) <= self.context
        self.passes += 1
        rows = []
        for token in tokens:
            self.tokens.append(token)
            rng = np.random.default_rng([self.seed, *self.tokens])
            rows.append(2 * rng.standard_normal(VOCABULARY))
        return np.array(rows[-scored:], np.float32)

    def crop(self, length: int) -> None:
        assert length <= self.length
        del self.tokens[length:]


def drawing(seed: int) -> Callable[[Logits], int]:
    """Return a sampler with its own random numbers."""
    rng = np.random.default_rng(seed)

    def draw(row: Logits) -> int:
        weights = np.exp(row.astype(np.float64))
        return int(rng.choice(VOCABULARY, p=weights / weights.sum()))

    return draw


seeds = st.integers(0, 10**6)


@settings(max_examples=150, deadline=None)
@given(seeds, st.sampled_from(["same", "other"]), st.integers(0, 9), st.floats(0, 1), st.integers(1, 40), st.booleans())
def test_text_with_drafts_is_the_targets_own(
    seed: int, draft: str, length: int, least_chance: float, most: int, sampled: bool
) -> None:
    def answer(model: Toy | None) -> tuple[list[int], list[Round]]:
        choose = drawing(seed) if sampled else likeliest
        return decode(
            Toy(seed),
            model,
            [1, 2, 3],
            most=most,
            ends=[0],
            draft_length=length,
            least_chance=least_chance,
            choose=choose,
        )

    plain, _ = answer(None)
    drafted, rounds = answer(Toy(seed if draft == "same" else seed + 1))
    assert drafted == plain
    assert [token for one in rounds for token in one.chosen] == plain
    for one in rounds:
        accepted = len(one.chosen) - 1
        assert one.chosen[:accepted] == one.drafts[:accepted]
        assert len(one.drafts) <= length
    assert len(plain) <= most
    assert 0 not in plain[:-1]


def test_drafts_of_the_same_model_are_all_accepted() -> None:
    target = Toy(3)
    answer, rounds = decode(target, Toy(3), [1], most=21, ends=[], draft_length=4)
    assert len(answer) == 21
    assert all(len(one.chosen) == len(one.drafts) + 1 for one in rounds)
    assert target.passes == len(rounds) == 5


def test_an_unlikely_draft_is_not_proposed() -> None:
    _, rounds = decode(Toy(3), Toy(3), [1], most=20, ends=[], draft_length=4, least_chance=1.0)
    assert all(one.drafts == () for one in rounds)


@pytest.mark.parametrize("context", [4, 9])
def test_an_answer_ends_at_the_end_of_the_context(context: int) -> None:
    answer, _ = decode(Toy(5, context=context), Toy(5, context=context), [1, 2], most=50, ends=[], draft_length=8)
    assert len(answer) == context - 2


def test_a_shorter_context_of_the_draft_model_ends_drafting_only() -> None:
    plain, _ = decode(Toy(5), None, [1, 2], most=30, ends=[])
    drafted, rounds = decode(Toy(5), Toy(5, context=8), [1, 2], most=30, ends=[], draft_length=4)
    assert drafted == plain
    assert [len(one.drafts) for one in rounds[:4]] == [0, 4, 1, 0]


class Cached:
    """A model of edgedecode with one KV state, as the loop of bundles sees it."""

    def __init__(self, model: LanguageModel, context: int = CAPACITY) -> None:
        self.model, self.state, self.context = model, model.new_state(context), context

    @property
    def length(self) -> int:
        return self.state.length

    def read(self, tokens: Sequence[int], *, scored: int) -> Logits:
        logits = self.model.forward(tokens, self.state, rows=range(len(tokens) - scored, len(tokens))).logits.copy()
        self.state.keep(range(len(tokens)))
        return logits

    def crop(self, length: int) -> None:
        self.state.crop(length)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    alike=st.booleans(),
    prompt=st.lists(st.integers(0, 19), min_size=1, max_size=30),
    length=st.integers(0, 9),
    most=st.integers(1, 60),
    ends=st.sets(st.integers(0, 19), max_size=2),
)
def test_rounds_are_those_of_edgedecodes_loop(
    seed: int, alike: bool, prompt: list[int], length: int, most: int, ends: set[int]
) -> None:
    tables = toy_tables(20, seed=seed), toy_tables(20, seed=seed if alike else seed + 1)
    target, draft = (TableModel(each, context=CAPACITY) for each in tables)
    answer, rounds = decode(Cached(target), Cached(draft), prompt, most=most, ends=ends, draft_length=length)
    sampler = Sampler(SamplingOptions(), vocabulary_size=20)
    given = {"context": CAPACITY, "length": length, "most": most, "ends": ends}
    assert recorded(target, draft, prompt, sampler, Noise(0), **given) == (answer, rounds)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        yield pair


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("text", ["Tell me a story about a heron.", "What is 7 plus 5?"])
def test_rounds_of_the_bundled_pair_are_those_of_edgedecodes_loop(pair: Pair, text: str, temperature: float) -> None:
    target, draft, size = pair.target, pair.draft, pair.tokenizer.size
    assert draft is not None
    prompt = pair.tokenizer.encode(pair.tokenizer.render([edgedecode.Message("user", text)]))
    ends, context, noise = set(pair.manifest.generation.end_token_ids), 256, Noise(7)
    sampler = Sampler(SamplingOptions(temperature=temperature), vocabulary_size=size)
    given = {"context": context, "length": 3, "most": 60, "ends": ends}
    answer, rounds = recorded(target, draft, prompt, sampler, noise, **given)
    assert {len(one.chosen) for one in rounds} >= {1, 2}
    positions = count(len(prompt))

    def choose(row: Logits) -> int:
        return sampler.draw(row, key=noise.key_at(next(positions)))

    models = Cached(target, context), Cached(draft, context)
    assert decode(*models, prompt, most=60, ends=ends, draft_length=3, choose=choose) == (answer, rounds)


def recorded(
    target: LanguageModel,
    draft: LanguageModel,
    prompt: Sequence[int],
    sampler: Sampler,
    noise: Noise,
    *,
    context: int,
    length: int,
    most: int,
    ends: set[int],
) -> tuple[list[int], list[Round]]:
    """Return the answer of edgedecode's loop, and its rounds."""
    size = target.card.vocabulary_size
    drafter = ModelDrafter(draft, draft_setting(size, model=draft, capacity=context))
    drafting = Drafting.fixed(drafter, length, noise=Noise(0, stream=1))
    setting = DecodeSetting(sampler, noise, drafting=drafting, ends=frozenset(ends))
    tokens, rounds = [*prompt], list[Round]()
    verdicts = edgedecode.decode(
        target, target.new_state(context), tokens=tokens, max_tokens=most, setting=setting, stats=Stats()
    )
    for verdict in verdicts:
        if verdict is None:  # a piece of the prompt
            continue
        rounds.append(Round(len(tokens) - len(verdict.tokens), verdict.draft.tokens, verdict.tokens))
    drafting.close()
    return tokens[len(prompt) :], rounds
