"""Answers that a function scores while they are written: their distribution, and what one that takes over keeps."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from edgedecode import (
    Candidate,
    CapabilityError,
    Checked,
    Completion,
    InputError,
    Pair,
    SamplingOptions,
    Scored,
    TokenSet,
)
from edgedecode.sessions.scored import Particles
from tests.toys import ascii_pair, session_options

LETTERS, LENGTH, PROMPT = "abc", 3, "hello"
COUNT, RUNS, BOUND = 64, 100, 0.03
"""Scored answers of a run, runs, and the largest error of a sequence's share: more than three standard deviations."""
WARM = SamplingOptions(temperature=1.0)


def likes_changes(text: str) -> float:
    return 1.5 * sum(a != b for a, b in itertools.pairwise(text)) - 2.0 * text.count("b")


def scored(
    pair: Pair,
    score: Scored | None,
    *,
    count: int = 8,
    most: int = 24,
    seed: int = 3,
    sampling: SamplingOptions = WARM,
    **more: object,
) -> list[Completion]:
    options = session_options(seed=seed, samples=count, sampling=sampling)
    with pair.session(options) as session:
        return session.samples(PROMPT, count, raw=True, max_tokens=most, score=score, **more).completions()  # type: ignore[arg-type]


def exact(pair: Pair, score: Callable[[str], float]) -> dict[str, float]:
    """Return the share of each text of three letters: its probability among them, times e to its score."""
    prompt, ids = pair.tokenizer.encode(PROMPT), [pair.tokenizer.encode(each)[0] for each in LETTERS]
    found = {}
    for text in itertools.product(range(len(LETTERS)), repeat=LENGTH):
        tokens, chance = list(prompt), 1.0
        for each in text:
            row = np.exp(pair.target.logits_after(tokens)[ids].astype(np.float64))  # type: ignore[attr-defined]
            chance *= row[each] / row.sum()
            tokens.append(ids[each])
        said = "".join(LETTERS[each] for each in text)
        found[said] = chance * math.exp(score(said))
    return {said: share / sum(found.values()) for said, share in found.items()}


def test_shares_are_the_models_times_e_to_the_score() -> None:
    with ascii_pair() as pair:
        allowed = TokenSet([pair.tokenizer.encode(each)[0] for each in LETTERS])
        counts = Counter[str]()
        for seed in range(RUNS):
            found = scored(
                pair, Scored(likes_changes, after=""), count=COUNT, most=LENGTH, seed=1000 * seed, constraint=allowed
            )
            counts.update(each.text for each in found)
        wanted, plain = exact(pair, likes_changes), exact(pair, lambda text: 0.0)
    assert max(abs(wanted[text] - plain[text]) for text in wanted) > 10 * BOUND
    assert set(counts) <= set(wanted)
    for text, share in wanted.items():
        assert abs(counts[text] / (RUNS * COUNT) - share) < BOUND, text


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the answers that have taken over another's text so far."""
    made: list[int] = []
    copy = Particles._copy

    def counted(self: Particles, parent: int, child: int) -> None:
        made.append(child)
        copy(self, parent, child)

    monkeypatch.setattr(Particles, "_copy", counted)
    return made


VOWELS = Scored(lambda text: 2.0 * sum(each in "aeiou" for each in text), after=tuple("aeiouxyz"))


@pytest.mark.parametrize(
    ("sampling", "stop"),
    [(WARM, ()), (SamplingOptions(temperature=1.1, top_k=40), ("q", "#|"))],
    ids=["plain", "stop strings"],
)
def test_an_answer_that_takes_over_is_whole(
    copies: list[int], sampling: SamplingOptions, stop: tuple[str, ...]
) -> None:
    """Its text is that of its tokens, and their log probabilities are those of a pass over all of them."""
    with ascii_pair(ending=2.0) as pair:
        found = scored(pair, VOWELS, sampling=sampling, stop=stop, top_logprobs=0)
        assert len(set(copies)) > 2
        again = scored(pair, VOWELS, sampling=sampling, stop=stop, top_logprobs=0)
        assert [(each.tokens, each.text, each.logprobs) for each in again] == [
            (each.tokens, each.text, each.logprobs) for each in found
        ]
        assert [each.text for each in found] != [each.text for each in scored(pair, VOWELS, seed=99, stop=stop)]
        assert [each.stats.seed for each in found] == list(range(3, 11))
        prompt = pair.tokenizer.encode(PROMPT)
        for each in found:
            text = pair.tokenizer.decode(each.tokens)
            assert text == each.text or (text.startswith(each.text) and each.stats.stop_string in (*stop, ""))
            assert each.stats.tokens == len(each.tokens)
            with pair.session() as session:
                scores = session.score([*prompt, *each.tokens])[len(prompt) :]
            assert [one.logprob for one in each.logprobs] == pytest.approx([one.logprob for one in scores if one])


def triples(text: str) -> list[str]:
    return [text[place : place + 3] for place in range(len(text) - 2)]


def fresh(candidate: Candidate) -> bool:
    """Whether a text of four letters repeats no three of them."""
    found = triples(candidate.text)
    return not candidate.ended and set(candidate.text) <= set("abei") and len(found) == len(set(found))


@pytest.mark.parametrize("by", ["penalty", "check"])
def test_penalties_and_checks_know_the_text_that_was_taken_over(copies: list[int], by: str) -> None:
    """Both forbid that three letters are repeated, which happens where they miss some of the text."""
    with ascii_pair() as pair:
        letters = TokenSet([pair.tokenizer.encode(each)[0] for each in "abei"])
        once = SamplingOptions(temperature=1.0, dry_multiplier=50.0)
        more = {"sampling": once, "constraint": letters} if by == "penalty" else {"constraint": Checked(fresh)}
        for seed in range(4):
            for each in scored(pair, VOWELS, most=24, seed=seed, **more):  # type: ignore[arg-type]
                assert set(Counter(triples(each.text)).values()) == {1}
        assert len(copies) > 20


def test_equal_scores_change_nothing(copies: list[int]) -> None:
    with ascii_pair(ending=4.0) as pair:
        flat, plain = (scored(pair, each, count=5) for each in (Scored(lambda text: 0.5, after=""), None))
    assert [each.tokens for each in flat] == [each.tokens for each in plain]
    assert not copies


def fails(text: str) -> float:
    raise KeyError(text[:1])


@pytest.mark.parametrize(
    ("score", "more", "message"),
    [
        (Scored(fails, after=""), {}, "the score's function failed: KeyError"),
        (Scored(lambda text: math.nan, after=""), {}, "is nan: it has to be a finite number"),
        (Scored(lambda text: math.inf, after=""), {}, "is inf"),
        (VOWELS, {"count": 1}, "ask for 2 or more"),
        (VOWELS, {"sampling": SamplingOptions()}, "with a temperature"),
        (VOWELS, {"sampling": SamplingOptions(temperature=1.0, mirostat=2)}, "leave out Mirostat"),
        (VOWELS, {"most": 70}, "8 scored answers may need 565 positions and the context has 512"),
    ],
)
def test_refused_in_one_line(score: Scored, more: dict[str, object], message: str) -> None:
    with ascii_pair() as pair:
        with pytest.raises((InputError, CapabilityError), match=message) as raised:
            scored(pair, score, **more)  # type: ignore[arg-type]
        assert "\n" not in str(raised.value)
        assert len(scored(pair, VOWELS)) == 8


def test_rows_and_seeds_that_are_too_few_are_named() -> None:
    with ascii_pair() as pair, pair.session(session_options(sampling=WARM, samples=4)) as session:
        with pytest.raises(InputError, match=r"8 scored answers need a row each and 4 are planned.*samples=8"):
            session.samples(PROMPT, 8, max_tokens=9, score=VOWELS)
        with pytest.raises(InputError, match="3 answers need a seed each and there are 2"):
            session.completions([PROMPT] * 3, seeds=[1, 2])
