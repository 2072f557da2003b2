"""The tokens of an answer with an adapter against the target's own choices, for engines whose rows depend on a pass."""

from contextlib import closing

from edgedecode import Pair, Session

CHUNK = 32
"""Prompt tokens per pass."""


def largest_gap(pair: Pair, session: Session, *, new: int) -> float:
    """Return the largest gap, in logits, of a greedy session's last `new` tokens to the arg-max of one-row passes."""
    tokens, span = session.tokens, session._turns.reading.span
    first, place, gap = len(tokens) - new - 1, 0, 0.0
    with closing(pair.target.new_state(len(tokens))) as state:
        while place < first:
            end = min(place + CHUNK, first)
            end = min(end, span.start) if place < span.start else end
            pair.target.forward(tokens[place:end], state, rows="none", adapter=span.at(place))
            state.keep(range(end - place))
            place = end
        for place in range(first, len(tokens) - 1):
            row = pair.target.forward([tokens[place]], state, adapter=span.at(place)).logits[0]
            gap = max(gap, float(row[: pair.tokenizer.size].max() - row[tokens[place + 1]]))
            state.keep([0])
    return gap
