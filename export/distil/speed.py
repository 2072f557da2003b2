"""What a pack's drafts gain on texts that were held out: speed over plain decoding, and tokens of a round."""

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from edgedecode import Pair, SamplingOptions, SessionOptions, load
from edgedecode.errors import EdgeDecodeError

from .kinds.head_network import DEPTH
from .texts import Lengths, Text

TOKENS = 96
_WARM_UP = 3
"""Texts by which the scheduler learns costs and acceptance first."""


def speed_ups(root: Path, texts: Sequence[Text], *, adapter: str | None, advance: Callable[[int], None]) -> list[float]:
    """Return each text's speed with the pack's drafts over its speed without, decoding alone, in turns.

    Raises EdgeDecodeError if an answer differs, which no draft may cause.
    """
    with _opened(root, adapter) as pair:
        options = [_options(pair, drafter, adapter=adapter) for drafter in ("none", None)]
        for text in texts[:_WARM_UP]:
            _answer(pair, text, options[1])
        ratios = []
        for text in texts:
            (plain, seconds), (drafted, less) = (_answer(pair, text, each) for each in options)
            if plain != drafted:
                raise EdgeDecodeError("an answer with drafts differs from the one without: report this")
            ratios.append(seconds / less if less else 1.0)
            advance(1)
        return ratios


def tokens_a_round(
    root: Path, texts: Sequence[Text], *, drafter: str, adapter: str | None, advance: Callable[[int], None]
) -> list[float]:
    """Return each text's tokens of a round with one drafter, which always drafts as many as are trained: no timing."""
    found = []
    with _opened(root, adapter) as pair:
        options = _options(pair, drafter, adapter=adapter, draft_max=DEPTH)
        for text in texts:
            with pair.session(options) as session:
                session.collect(session.complete(text.prompt, max_tokens=TOKENS))
                found.append(session.stats.verified_tokens / max(1, session.stats.rounds))
            advance(1)
    return found


def _answer(pair: Pair, text: Text, options: SessionOptions) -> tuple[tuple[int, ...], float]:
    """Return a greedy answer and the seconds from its first tokens to its end."""
    with pair.session(options) as session:
        started, tokens = 0.0, list[int]()
        for chunk in session.complete(text.prompt, max_tokens=TOKENS):
            started = started or perf_counter()
            tokens += chunk.tokens
        return tuple(tokens), perf_counter() - started


def _opened(root: Path, adapter: str | None) -> Pair:
    return load(root, adapters=adapter is not None)


def _options(pair: Pair, drafter: str | None, *, adapter: str | None, draft_max: int | None = None) -> SessionOptions:
    context = Lengths.of(pair).context
    return SessionOptions(SamplingOptions(), adapter, drafter=drafter, draft_max=draft_max, context=context)
