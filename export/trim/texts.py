"""The target's answers that a trim counts and measures on, each with the tokens that are scored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from edgedecode import Pair, SessionOptions
from edgedecode.decoding.stats import FinishReason
from edgedecode.engines.text_scores import ScoredText
from edgedecode.errors import ContextExceeded, InputError
from edgedecode.text.printable import file_text
from edgedecode.text.prompts import Prompt, interleaved, parse_prompts, read_prompts

_PARTS = 8
"""Of this many prompts, one is measured on, and one is for the choice of a size."""


@dataclass(frozen=True, slots=True)
class AnsweredText(ScoredText):
    """A conversation's tokens, up to an answer, whose tokens are scored."""

    ended: bool = False
    """Whether the answer ended by itself; if it was cut, its last token would not have been drafted."""

    def cut(self, length: int) -> "AnsweredText":
        """Return the text cut to at most `length` tokens."""
        if len(self.tokens) <= length:
            return self
        return replace(self, tokens=self.tokens[:length], start=min(self.start, length), ended=False)

    @property
    def answer(self) -> tuple[int, ...]:
        return self.tokens[self.start :]


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by their use, of different prompts: a size covers the text it was chosen on by construction."""

    counted: tuple[AnsweredText, ...]
    """Texts whose token frequencies rank the ids."""
    choosing: tuple[AnsweredText, ...]
    measured: tuple[AnsweredText, ...]


def bundled_prompts() -> list[Prompt]:
    """Return the bundled prompts."""
    return parse_prompts(files(__package__).joinpath("prompts.jsonl").read_bytes(), "the bundled prompts")


def chosen_prompts(file: Path | None, *, most: int | None) -> list[Prompt]:
    """Return the prompts of a file, or the bundled ones, from all families in turn. Raises InputError, OSError."""
    if file is not None:
        file_text(file)  # for a binary file, its error is clearer than "line 1 is not JSON"
    prompts = bundled_prompts() if file is None else read_prompts(file, family="")
    found = interleaved(prompts, name=lambda prompt: prompt.family)[:most]
    if len(found) < 2:
        raise InputError("a trim needs at least two prompts, since it measures on others than it counts: give more")
    return found


def answer_prompts(
    pair: Pair, prompts: Sequence[Prompt], *, max_tokens: int, advance: Callable[[int], None] = lambda amount: None
) -> list[list[AnsweredText]]:
    """Return the target's greedy answers to each prompt: for every turn, its context followed by its answer.

    Each prompt has a session of its own, without drafts. Raises ContextExceeded if a conversation does not fit.
    """
    found = []
    for prompt in prompts:
        texts = []
        with pair.session(SessionOptions(drafter="none"), messages=prompt.history) as session:
            for turn in prompt.turns:
                try:
                    reply = session.generate(turn, max_tokens=max_tokens)
                except ContextExceeded as error:
                    raise ContextExceeded(f"the prompt {turn[:40]!r} cannot be answered: {error}") from None
                start = len(session.tokens) - len(reply.tokens)
                ended = reply.finish_reason is FinishReason.STOP and len(reply.tokens) < max_tokens
                texts.append(AnsweredText(session.tokens, start, ended=ended))
        found.append(texts)
        advance(1)
    return found


def split_texts(texts: Sequence[Sequence[AnsweredText]]) -> Texts:
    """Split the texts of at least two prompts by their use, always alike."""
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    measured, choosing = order[::_PARTS], order[_PARTS // 2 :: _PARTS]
    held_out = {*measured, *choosing}

    def of(places: Sequence[int]) -> tuple[AnsweredText, ...]:
        return tuple(text for place in places for text in texts[place] if text.answer)

    counted = [place for place in order if place not in held_out]
    return Texts(of(counted), of(choosing or measured), of(measured))
