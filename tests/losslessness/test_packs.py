"""Losslessness on the real engine as stated in the README: float, bitwise, and re-scored with a bound on ties."""

from collections.abc import Sequence
from functools import cache

import pytest

import edgedecode
import edgedecode.decoding.loop as loop
from edgedecode import Completion, Pair, Rule, SamplingOptions, Session, SessionOptions
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.stats import Stats
from edgedecode.decoding.verify import Verdict
from edgedecode.engines.kernel_noise import rescore
from edgedecode.errors import CapabilityError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.testing import ScriptedDrafter
from tests.toys import session_options

GREEDY = SamplingOptions()
WARM = SamplingOptions(temperature=0.8, top_p=0.95)
DRAFTERS = ("model", "suffix", "recycle", "trim")
LENGTHS = (1, 2, 4, 8, 16)
FLOAT_GAP = 1e-3
"""Float kernels of different widths sum in another order; logits of this pair have a standard deviation of about 3."""


def answer(pair: Pair, prompt: str, *, max_tokens: int = 40, **options: object) -> Completion:
    """Answer one prompt in a fresh session."""
    with pair.session(session_options(seed=7, **options)) as session:
        return session.generate(prompt, max_tokens=max_tokens)


@cache
def plain_answer(pair: Pair, prompt: str, sampling: SamplingOptions) -> tuple[int, ...]:
    """Answer without drafts, cached for all tests that compare with it."""
    return answer(pair, prompt, sampling=sampling, drafter="none").tokens


def tokens_of(session: Session, prompt: str, *, max_tokens: int = 40) -> tuple[int, int]:
    session.generate(prompt, max_tokens=max_tokens)
    return session.stats.prompt_tokens, len(session.tokens)


class TreeDrafter(ScriptedDrafter):
    """Add a wrong sibling to every token of a known continuation: a tree whose correct path is not contiguous."""

    name = "tree"

    def __init__(self, truth: Sequence[int], *, depth: int) -> None:
        super().__init__({})
        self._truth = list(truth)
        self._depth = depth

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in self._truth[len(context) : len(context) + min(self._depth, limit // 2)]:
            wrong = (token + 1) % 8000 + 3
            tokens += [wrong, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(tuple(tokens), parents=tuple(parents), source=self.name)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_float_pair_with_drafts_is_plain_decoding_within_rounding(
    float_pair: Pair, prompts: list[str], drafter: str, length: int
) -> None:
    accepted = rejected = 0
    for prompt in prompts[LENGTHS.index(length) % 4 : 12 : 4]:
        with float_pair.session(SessionOptions(sampling=GREEDY, drafter=drafter, draft_max=length)) as session:
            if drafter == "recycle":  # which drafts from what the same conversation has seen
                session.generate(prompt, max_tokens=32)
            prompt_tokens, _ = tokens_of(session, prompt, max_tokens=28)
            score = rescore(float_pair.target, session.tokens, prompt_tokens=prompt_tokens)
            assert score.largest_gap <= FLOAT_GAP
            accepted += session.stats.accepted
            rejected += session.stats.corrections
    assert accepted > 0
    assert rejected > 0


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_float_pair_with_drafts_equals_plain_decoding_token_for_token(
    float_pair: Pair, prompts: list[str], drafter: str, sampling: SamplingOptions
) -> None:
    for prompt in prompts[:12]:
        drafted = answer(float_pair, prompt, sampling=sampling, drafter=drafter, draft_max=4)
        assert drafted.tokens == plain_answer(float_pair, prompt, sampling)


@pytest.mark.parametrize("pack", ["int4_pair", "bundled_pair"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 9, 16])
def test_reproducible_text_is_plain_text_with_any_draft_or_refused(
    request: pytest.FixtureRequest, prompts: list[str], pack: str, length: int
) -> None:
    """One prompt greedily, another one sampled."""
    pair: Pair = request.getfixturevalue(pack)
    if not pair.target.card.row_invariant:
        with pytest.raises(CapabilityError, match="needs our kernels"):
            pair.session(session_options(reproducible=True))
        return
    accepted = dict.fromkeys((*DRAFTERS, "tree"), 0)
    for sampling, prompt in zip((GREEDY, WARM), prompts[length % 4 : 8 : 4], strict=True):
        plain = plain_answer(pair, prompt, sampling)
        for drafter in accepted:
            drafted = answer(pair, prompt, sampling=sampling, drafter=drafter, draft_max=length, reproducible=True)
            assert drafted.tokens == plain
            accepted[drafter] += drafted.stats.accepted
    assert min(accepted[name] for name in ("model", "trim", "tree")) > 0


def test_reproducible_text_is_refused_on_llama() -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    with (
        edgedecode.load(BUNDLED_PACK, runtime="llama") as pair,
        pytest.raises(CapabilityError, match="leave out --reproducible"),
    ):
        pair.session(session_options(reproducible=True))


def test_bundled_pair_on_200_prompts_is_plain_decoding_within_kernel_noise(
    bundled_pair: Pair, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    noise = bundled_pair.target.card.kernel_noise
    assert noise is not None
    invariant = bundled_pair.target.card.row_invariant
    assert 0 < noise < 1
    noise = 0.0 if invariant else noise
    assert len(prompts) >= 200
    positions = hits = divergent = accepted = corrections = 0
    largest = 0.0
    for index, prompt in enumerate(prompts[:200]):
        options = SessionOptions(sampling=GREEDY, drafter=DRAFTERS[index % len(DRAFTERS)], draft_max=1 + index % 8)
        with bundled_pair.session(options) as session:
            prompt_tokens, _ = tokens_of(session, prompt, max_tokens=48)
            score = rescore(bundled_pair.target, session.tokens, prompt_tokens=prompt_tokens)
            accepted, corrections = accepted + session.stats.accepted, corrections + session.stats.corrections
        assert score.largest_gap <= noise, f"{prompt!r}: gap {score.largest_gap} above the kernel noise {noise}"
        positions, hits = positions + score.positions, hits + score.hits
        divergent += score.hits < score.positions
        largest = max(largest, score.largest_gap)
    with capsys.disabled():
        print(
            f"\n{hits} of {positions} tokens arg-max; {divergent} of 200 prompts divergent; largest gap {largest:.4f}"
        )
    assert accepted > positions / 4
    assert corrections > 200
    assert divergent <= (0 if invariant else 20)


@pytest.mark.parametrize("pack", ["float_pair", "bundled_pair"])
def test_scripted_trees_are_plain_decoding_within_kernel_noise(
    request: pytest.FixtureRequest, prompts: list[str], pack: str
) -> None:
    pair: Pair = request.getfixturevalue(pack)
    bound = FLOAT_GAP if pack == "float_pair" else pair.target.card.kernel_noise
    assert bound is not None
    accepted = 0
    for prompt in prompts[:8]:
        with pair.session(SessionOptions(sampling=GREEDY, drafter="none")) as session:
            prompt_tokens, length = tokens_of(session, prompt)
            truth = session.tokens
        tokens, stats = decode_with_trees(pair, truth, prompt_tokens=prompt_tokens, max_tokens=length - prompt_tokens)
        assert rescore(pair.target, tokens, prompt_tokens=prompt_tokens).largest_gap <= bound
        accepted += stats.accepted
    assert accepted > 0


def decode_with_trees(
    pair: Pair, truth: Sequence[int], *, prompt_tokens: int, max_tokens: int
) -> tuple[list[int], Stats]:
    tokens, stats = list(truth[:prompt_tokens]), Stats()
    setting = DecodeSetting(
        sampler=Sampler(GREEDY, vocabulary_size=pair.tokenizer.size),
        noise=Noise(0),
        drafting=Drafting.fixed(TreeDrafter(truth, depth=4), 8, noise=Noise(0, stream=1)),
        ends=frozenset(pair.manifest.generation.end_token_ids),
    )
    state = pair.target.new_state(512, rows=9)
    for _ in decode(pair.target, state, tokens=tokens, max_tokens=max_tokens, setting=setting, stats=stats):
        pass
    state.close()
    return tokens, stats


def test_ratio_rule_refuses_drafts_without_a_distribution(bundled_pair: Pair) -> None:
    with pytest.raises(CapabilityError, match="ratio"):
        bundled_pair.session(session_options(drafter="suffix", rule=Rule.RATIO))


class Siblings:
    """Count accepted nodes of a real session that are not their parent's first child."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.accepted = self.trees = 0
        self._verify = loop.verify
        monkeypatch.setattr(loop, "verify", self.counted)

    def counted(self, draft: Draft, *given: object, **named: object) -> Verdict:
        verdict = self._verify(draft, *given, **named)  # type: ignore[arg-type]
        if draft.parents is not None:
            self.trees += 1
            self.accepted += sum(draft.parents[node] in draft.parents[:node] for node in verdict.path)
        return verdict


def test_tree_drafter_is_plain_decoding_within_kernel_noise(
    bundled_pair: Pair, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = bundled_pair.target.card.kernel_noise
    assert noise is not None
    siblings = Siblings(monkeypatch)
    positions = hits = 0
    for index, prompt in enumerate(prompts[:24]):
        full = SessionOptions(sampling=GREEDY, drafter="tree", draft_max=(4, 8, 16)[index % 3])
        with bundled_pair.session(full) as session:
            prompt_tokens, _ = tokens_of(session, prompt, max_tokens=48)
            score = rescore(bundled_pair.target, session.tokens, prompt_tokens=prompt_tokens)
            assert score.largest_gap <= noise
            positions, hits = positions + score.positions, hits + score.hits
    assert positions > 24 * 8
    assert hits >= 0.99 * positions
    assert siblings.accepted > 0
    assert siblings.trees > 24


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_float_pair_with_trees_equals_plain_decoding_token_for_token(
    float_pair: Pair, prompts: list[str], sampling: SamplingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    siblings = Siblings(monkeypatch)
    for prompt in prompts[:16]:
        plain = plain_answer(float_pair, prompt, sampling)
        assert answer(float_pair, prompt, sampling=sampling, drafter="tree", draft_max=12).tokens == plain
    assert siblings.accepted > 0
