"""Switching with a check: the text is the target's, for any rule, sampling and course of a conversation."""

import random

import pytest

from edgedecode import SamplingOptions, Session, SwitchOptions
from edgedecode.switching.rule import SwitchRule
from edgedecode.testing import toy_pair
from tests.toys import session_options

Step = tuple[str, str, int]


def conversation(session: Session, steps: list[Step]) -> list[tuple[int, ...]]:
    """Take the steps, checking the counts of each answer, and return the tokens of the answers."""
    said = []
    for kind, prompt, number in steps:
        if kind == "reset":
            session.reset()
            continue
        stream = session.stream(prompt, max_tokens=3 * number, stop=["abcd"[number % 4]] if kind == "stop" else [])
        tokens: list[int] = []
        for chunk in stream:
            tokens += chunk.tokens
            if kind == "pause" and len(tokens) >= number:
                session.prepare()  # does nothing in the middle of an answer
        assert session.stats.tokens == len(tokens)
        assert session.stats.unverified_tokens == 0
        said.append(tuple(tokens))
    return said


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_checked_switching_gives_the_text_of_the_target(seed: int) -> None:
    rng = random.Random(seed)
    sampling = SamplingOptions(
        temperature=rng.choice([0.0, 0.7, 1.2]), top_k=rng.choice([0, 5]), repetition_penalty=rng.choice([1.0, 1.3])
    )
    rule = SwitchRule(
        up=rng.choice([0.05, 0.3, 0.8]),
        signal=rng.choice(["entropy", "doubt", "rivalry"]),
    )
    kinds = ("answer", "answer", "stop", "pause", "reset")
    steps = [(rng.choice(kinds), "x" * rng.randint(1, 9), rng.randint(1, 40)) for _ in range(5)]
    texts = []
    for switch in (None, SwitchOptions(rule=rule, check=True)):
        options = session_options(seed=seed, sampling=sampling, ignore_eos=seed % 2 > 0, switch=switch)
        with toy_pair(seed=seed % 7, draft_noise=0.5) as pair, pair.session(options) as session:
            texts.append(conversation(session, steps))
    assert texts[0] == texts[1]
