"""Constraints that a program gives: exact shares, the same text and questions with any drafts, errors in one line."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from edgedecode import Candidate, CapabilityError, Checked, InputError, Rule, SamplingOptions, TokenSet
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.stats import Stats
from edgedecode.options import SwitchOptions
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.structured.given import CheckConstraint
from edgedecode.testing import byte_tokenizer
from tests.toys import CallDrafter, ascii_pair, reference_row, session_options, toy_model

VOCABULARY, LENGTH, DRAWS = 4, 3, 1500
PLAIN = SamplingOptions(temperature=1.0, repetition_penalty=1.3)
NARROW = SamplingOptions(temperature=1.2, top_k=2)
GREEDY = SamplingOptions()
TOKENIZER = byte_tokenizer()


def rises(candidate: Candidate) -> bool:
    """Refuse two equal tokens, and 3 at first; so all that top-k leaves may be refused."""
    *before, last = candidate.tokens
    return last != 3 if not before else last != before[-1] and last + before[-1] != 3


def generate(
    function: Callable[[Candidate], bool], options: SamplingOptions, *, seed: int, drafts: Sequence[int]
) -> tuple[int, ...]:
    model = toy_model(VOCABULARY, seed=5)
    drafter = CallDrafter(lambda tokens, most, rng: Draft(tuple(drafts)[:most]))
    setting = DecodeSetting(
        sampler=Sampler(options, vocabulary_size=VOCABULARY),
        noise=Noise(seed),
        drafting=Drafting.fixed(drafter, len(drafts), noise=Noise(seed, stream=1)) if drafts else None,
        constraint=CheckConstraint(function, tokenizer=TOKENIZER, ends=()),
    )
    tokens, state = [0], model.new_state(16, rows=8)
    for _ in decode(model, state, tokens=tokens, max_tokens=LENGTH, setting=setting, stats=Stats()):
        pass
    return tuple(tokens[1:])


def exact(options: SamplingOptions) -> dict[tuple[int, ...], float]:
    """Return the probability of each sequence: the processed row over accepted tokens, renormalised at each place.

    If the row leaves none, its tokens are masked and the rest is processed again.
    """
    model, found = toy_model(VOCABULARY, seed=5), {}
    for sequence in itertools.product(range(VOCABULARY), repeat=LENGTH):
        chance = 1.0
        for place, token in enumerate(sequence):
            before = sequence[:place]
            accepted = [rises(Candidate("", (*before, each), ended=False)) for each in range(VOCABULARY)]
            left = [True] * VOCABULARY
            row = model.logits_after([0, *before])
            while True:
                p = reference_row(row, vocabulary=VOCABULARY, options=options, seen=[0], generated=before, allowed=left)
                if mass := sum(each for each, good in zip(p, accepted, strict=True) if good):
                    break
                left = [good and not each for each, good in zip(p, left, strict=True)]
            chance *= p[token] / mass if accepted[token] else 0.0
        if chance:
            found[sequence] = chance
    assert sum(found.values()) == pytest.approx(1)
    return found


@pytest.mark.parametrize("options", [PLAIN, NARROW, GREEDY], ids=["plain", "narrow", "greedy"])
def test_shares_are_those_of_a_mask_of_all_refused_tokens(options: SamplingOptions) -> None:
    shares = exact(options)
    counts = Counter(generate(rises, options, seed=seed, drafts=()) for seed in range(DRAWS))
    assert set(counts) <= set(shares)
    statistic = sum((counts[key] - DRAWS * p) ** 2 / (DRAWS * p) for key, p in shares.items())
    assert statistic < len(shares) + 6 * (2 * len(shares)) ** 0.5  # chi squared, six deviations


@pytest.mark.parametrize("drafts", [(1,), (1, 2, 0), (3, 3)])
def test_drafts_change_neither_the_text_nor_what_is_asked(drafts: Sequence[int]) -> None:
    refused = 0
    for seed in range(60):
        asked: dict[bool, list[Candidate]] = {False: [], True: []}

        def ask(candidate: Candidate, drafted: bool, asked: dict[bool, list[Candidate]] = asked) -> bool:
            asked[drafted].append(candidate)
            return rises(candidate)

        plain = generate(lambda each: ask(each, False), PLAIN, seed=seed, drafts=())
        assert generate(lambda each: ask(each, True), PLAIN, seed=seed, drafts=drafts) == plain
        assert asked[True] == asked[False]
        assert [each.tokens for each in asked[False] if rises(each)] == [plain[: place + 1] for place in range(LENGTH)]
        assert len(asked[False]) == len({each.tokens for each in asked[False]})  # none is asked about twice
        refused += len(asked[False]) - LENGTH
    assert 30 < refused < 60 * LENGTH  # far from all three others at each place


def digits(candidate: Candidate) -> bool:
    return candidate.ended or candidate.text.isdigit()


DIGITS = frozenset(TOKENIZER.encode("0123456789"))
WAYS = [{"drafter": "none"}, {"drafter": "model", "draft_max": 4}, {"drafter": "suffix", "draft_max": 3}, {}]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sessions_answer_within_a_set_or_a_check_with_any_drafts(temperature: float) -> None:
    """Without truncation both restrict to the same tokens with the same noise, so the texts are equal too."""
    sampling, texts = SamplingOptions(temperature=temperature), set()
    with ascii_pair() as pair:
        ends = pair.manifest.end_ids
        for given in (TokenSet({*DIGITS, *ends}), Checked(digits)):
            for way in WAYS:
                with pair.session(session_options(sampling=sampling, seed=4, **way)) as session:
                    texts.add(session.generate("hello", max_tokens=30, constraint=given).text)
                    assert not session.generate("hello", max_tokens=30).text.isdigit()
        assert len(texts) == 1
        assert texts.pop().isdigit()
        with pair.session(session_options(sampling=sampling, seed=4, samples=3)) as session:
            found = session.samples("hello", 3, max_tokens=20, constraint=Checked(digits)).completions()
        for number, each in enumerate(found):
            with pair.session(session_options(sampling=sampling, seed=4 + number)) as session:
                assert session.generate("hello", max_tokens=20, constraint=Checked(digits)).text == each.text


def fails(candidate: Candidate) -> bool:
    if len(candidate.tokens) == 3:
        raise KeyError("three")
    return True


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (Checked(fails), InputError, "the constraint's function failed: KeyError: 'three'"),
        (Checked(lambda candidate: len(candidate.tokens) < 3), CapabilityError, "allows no further token"),
        (TokenSet(()), InputError, "a set without tokens"),
        (TokenSet((5, 259)), InputError, "259 is no token of this model: ids are 0 to 258"),
    ],
)
def test_what_fails_or_refuses_everything_ends_the_answer_in_one_line(
    given: Checked | TokenSet, error: type[Exception], message: str
) -> None:
    with ascii_pair() as pair, pair.session(session_options(seed=1)) as session:
        with pytest.raises(error, match=message) as raised:
            session.generate("hello", max_tokens=9, constraint=given)
        assert "\n" not in str(raised.value)
        session.reset()
        after = session.generate("hello", max_tokens=9).text
    with ascii_pair() as pair, pair.session(session_options(seed=session.seed)) as session:
        assert session.generate("hello", max_tokens=9).text == after


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"switch": SwitchOptions(threshold=1.0)}, TokenSet(DIGITS), "leave out switching"),
        ({"rule": Rule.RATIO, "drafter": "model", "draft_max": 2}, Checked(digits), "use the match rule"),
    ],
)
def test_options_that_a_constraint_cannot_be_used_with(
    options: dict[str, object], given: Checked | TokenSet, message: str
) -> None:
    with ascii_pair() as pair, pair.session(session_options(**options)) as session:
        with pytest.raises(CapabilityError, match=message):
            session.generate("hello", max_tokens=3, constraint=given)
        assert not session.messages
