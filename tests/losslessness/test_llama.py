"""Losslessness on llama.cpp in float: with chains and trees the text equals plain decoding token for token."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import LanguageModel
from edgedecode.decoding.policy import FixedLength
from edgedecode.decoding.stats import Stats
from edgedecode.drafters.model_drafter import ModelSource
from edgedecode.drafters.recycle import RecycleSource
from edgedecode.drafters.source import DrafterSource, DraftSetting
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.drafters.tree_drafter import TreeSource
from edgedecode.memory.budget import Budget
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from tests.contract.conftest import GgufOpener
from tests.contract.toy_graph import ToyShape
from tests.toys import CallDrafter, check_accounts

GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.95)
TARGET = ToyShape()
DRAFTS = {"equal": TARGET, "differs": replace(TARGET, layers=1), "hostile": replace(TARGET, seed=99)}
PROMPT = [int(token) for token in np.random.default_rng(2).integers(0, 128, 12)] * 2
NEW = 60


@pytest.fixture(scope="module")
def gguf_toys(tmp_path_factory: pytest.TempPathFactory) -> GgufOpener:
    return GgufOpener(tmp_path_factory.mktemp("ggufs"))


@pytest.fixture(scope="module")
def target(gguf_toys: GgufOpener) -> Iterator[LanguageModel]:
    model = gguf_toys(TARGET)
    yield model
    model.close()


def decode_text(
    model: LanguageModel, sampling: SamplingOptions, *, drafter: Drafter | None = None, draft_max: int = 0
) -> tuple[list[int], Stats]:
    """Decode after the prompt; wrong rows of the KV state would show in the text."""
    state = model.new_state(len(PROMPT) + NEW + 1, rows=draft_max + 1)
    tokens, stats = list(PROMPT), Stats()
    setting = DecodeSetting(
        sampler=Sampler(sampling, vocabulary_size=model.card.vocabulary_size),
        noise=Noise(11),
        drafting=None if drafter is None else Drafting.fixed(drafter, draft_max, noise=Noise(11, stream=1)),
    )
    for _ in decode(model, state, tokens=tokens, max_tokens=NEW, setting=setting, stats=stats):
        assert (state.pending, state.length) == (0, len(tokens) - 1)
    state.close()
    check_accounts(stats, emitted=len(tokens) - len(PROMPT))
    return tokens[len(PROMPT) :], stats


@cache
def plain_text(model: LanguageModel, sampling: SamplingOptions) -> list[int]:
    """Decode without drafts, cached for all tests that compare with it."""
    return decode_text(model, sampling)[0]


def setting(model: LanguageModel | None, sampling: SamplingOptions) -> DraftSetting:
    return DraftSetting(
        budget=Budget(),
        sampling=sampling,
        vocabulary_size=128,
        capacity=len(PROMPT) + NEW + 1,
        draft_model=model,
        noise=Noise(11),
    )


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("quality", DRAFTS)
@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_decode_with_chains_of_a_draft_model(
    target: LanguageModel, gguf_toys: GgufOpener, quality: str, length: int, sampling: SamplingOptions
) -> None:
    plain = plain_text(target, sampling)
    draft = gguf_toys(DRAFTS[quality])
    drafter = ModelSource().open(setting(draft, sampling))
    found, stats = decode_text(target, sampling, drafter=drafter, draft_max=length)
    assert found == plain
    assert stats.proposed > 0
    assert stats.accepted > 0 or quality != "equal"
    assert stats.corrections > 0 or quality == "equal"
    drafter.close()
    draft.close()


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("source", [SuffixSource, RecycleSource])
def test_decode_with_chains_of_lookups(
    target: LanguageModel, source: type[DrafterSource], length: int, sampling: SamplingOptions
) -> None:
    plain = plain_text(target, sampling)
    drafter = source().open(setting(None, sampling))
    found, stats = decode_text(target, sampling, drafter=drafter, draft_max=length)
    assert found == plain
    assert stats.proposed > 0 or sampling is WARM


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [2, 4, 8, 16])
def test_decode_with_random_trees(target: LanguageModel, length: int, sampling: SamplingOptions) -> None:
    plain = plain_text(target, sampling)
    truth, rng = [*PROMPT, *plain], np.random.default_rng(length)

    def random_tree(context: Sequence[int], limit: int, _: UniformSource) -> Draft:
        """Return a random tree with correct tokens at half of its nodes: paths have various lengths and branch."""
        parents, depths, tokens = [], [], []
        for node in range(limit):
            parent = int(rng.integers(max(-1, node - 3), node))
            parents.append(parent)
            depths.append(0 if parent < 0 else depths[parent] + 1)
            place = len(context) + depths[node]
            right = truth[place] if place < len(truth) else 0
            tokens.append(right if rng.random() < 0.6 else (right + node + 1) % 128)
        return Draft(tuple(tokens), parents=tuple(parents), source="random")

    drafter = CallDrafter(random_tree)
    found, stats = decode_text(target, sampling, drafter=drafter, draft_max=length)
    assert found == plain
    assert stats.accepted > 0
    assert stats.corrections > 0


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("nodes", [4, 8, 16])
@pytest.mark.parametrize("quality", ["differs", "hostile"])
def test_decode_with_the_tree_drafter(
    target: LanguageModel, gguf_toys: GgufOpener, quality: str, nodes: int, sampling: SamplingOptions
) -> None:
    """Both models store trees as sequences; accepted nodes stay in the draft's state too."""
    plain = plain_text(target, sampling)
    draft = gguf_toys(DRAFTS[quality])
    drafter = TreeSource().open(replace(setting(draft, sampling), tree=True))
    state = target.new_state(len(PROMPT) + NEW + 1, rows=nodes + 1)
    tokens, siblings, widest = list(PROMPT), 0, 0
    whole = DecodeSetting(
        sampler=Sampler(sampling, vocabulary_size=target.card.vocabulary_size),
        noise=Noise(11),
        drafting=Drafting([drafter], FixedLength(nodes), noise=Noise(11, stream=1)),
    )
    for verdict in decode(target, state, tokens=tokens, max_tokens=NEW, setting=whole, stats=Stats()):
        assert (state.pending, state.length) == (0, len(tokens) - 1)
        parents = verdict.draft.parents or ()
        siblings += sum(parents[node] in parents[:node] for node in verdict.path if parents)
        widest = max(widest, max((parents.count(parent) for parent in parents), default=1))
    assert tokens[len(PROMPT) :] == plain
    assert siblings > 0 or quality != "differs"
    assert widest > 1
    state.close()
    drafter.close()
    draft.close()


def test_session_on_a_gguf_pack_equals_plain_decoding(tmp_path: Path, gguf_toys: GgufOpener) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    import edgedecode
    from tests.contract.gguf_pack import write_pack

    root = write_pack(tmp_path / "pack", gguf_toys)
    with edgedecode.load(root, runtime="llama") as pair:
        assert pair.target.card.kv_type == "float32"
        texts = set()
        for drafter in ("none", "model", "suffix", "recycle", "tree"):
            options = edgedecode.SessionOptions(
                sampling=GREEDY,
                drafter=drafter,
                draft_max=4,
                seed=7,
                context=300,
                details=edgedecode.SessionDetails(ignore_eos=True),
            )
            with pair.session(options) as session:
                texts.add(session.generate("hello", max_tokens=40).tokens)
                session.generate("again", max_tokens=8)
        assert len(texts) == 1
