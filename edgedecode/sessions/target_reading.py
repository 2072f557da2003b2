"""Reuse the target's KV cache between messages: how many tokens stay valid, under which adapter."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from edgedecode.decoding.model import AdapterSpan, LanguageModel, State
from edgedecode.errors import BudgetExceeded
from edgedecode.sampling.sampler import Sampler
from edgedecode.user_notices import notice

if TYPE_CHECKING:  # few answers are asked for either
    from edgedecode.adapters.pack_adapters import ActiveAdapter
    from edgedecode.sampling.log_probabilities import TokenLogprob

_SCORED = 16
"""Tokens per scoring pass. The logits of a pass are held together: 10 MB at 152,000 ids. 512 tokens of the
bundled target take 39 ms in passes of 16, 36 in passes of 64, 133 one by one."""
_CHUNK = 32
"""Tokens per forward pass in idle time; a new message waits for at most one pass."""


def adapter_span(adapter: ActiveAdapter | None, prompt: Sequence[int]) -> AdapterSpan:
    """Return the adapter span of a prompt and its answer.

    An activated adapter is on from the last occurrence of its invocation tokens; without one it stays off, as in PEFT.
    """
    if adapter is None:
        return AdapterSpan()
    invocation = list(adapter.invocation)
    if not invocation:
        return AdapterSpan(adapter.use)
    for start in range(len(prompt) - len(invocation), -1, -1):
        if list(prompt[start : start + len(invocation)]) == invocation:
            return AdapterSpan(adapter.use, start)
    notice(f"the adapter {adapter.use.name!r} stays off: the prompt lacks the tokens that activate it")
    return AdapterSpan()


class TargetReading:
    """The KV cache of one conversation. Keys and values computed with one adapter are never used with another."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.span = AdapterSpan()
        """The adapter of the state's positions."""
        self.prompt: Sequence[int] = ()
        """Where an adapter's invocation tokens are looked for."""

    def begin(
        self,
        old: Sequence[int],
        new: Sequence[int],
        *,
        adapter: ActiveAdapter | None,
        prompt: Sequence[int],
    ) -> None:
        """Crop the state, which holds the `old` tokens, to what it shares with `new`.

        prompt: the part of `new` that is searched for an adapter's invocation tokens.
        """
        self.prompt = prompt
        span = adapter_span(adapter, self.prompt)
        alike, length = self.span.shared_with(span), self._state.length
        _cut(self._state, old[: length if alike is None else min(alike, length)], new)
        self.span = span  # last: after an interrupt, the remaining positions are valid under both spans

    def score(
        self, tokens: Sequence[int], target: LanguageModel, sampler: Sampler, *, top: int, rows: int
    ) -> Iterator[tuple[TokenLogprob, ...]]:
        """Prefill `tokens` without the last from the start, and yield after each pass what it says of the next ones.

        rows: of logits, which the state's plan has room for; more are computed at once where the budget has room.
        Each yield is a point where other threads may use the models.
        """
        state, most = self._state, max(rows, _SCORED)
        state.crop(0)
        while left := len(tokens) - 1 - (start := state.length):
            count = min(left, most) if self.span.start <= start else min(left, most, self.span.start - start)
            try:
                output = target.forward(tokens[start : start + count], state, rows="all", adapter=self.span.at(start))
            except BudgetExceeded:
                if most == rows:
                    raise
                most = rows
                continue
            said = zip(output.logits, tokens[start + 1 : start + count + 1], strict=True)
            found = tuple(sampler.logprob(row, token, top=top) for row, token in said)
            state.keep(range(count))
            yield found

    def read_again(self, tokens: Sequence[int], target: LanguageModel) -> Generator[None]:
        """Prefill the positions of an activated adapter again without it, as every later prompt needs them.

        tokens: of the full conversation. Closing it after a pass keeps the positions prefilled so far.
        """
        if self.span.use is None or not self.span.start:
            return
        self.begin(tokens, tokens, adapter=None, prompt=tokens)
        while piece := tokens[self._state.length : self._state.length + _CHUNK]:
            target.forward(piece, self._state, rows="none")
            self._state.keep(range(len(piece)))
            yield


def _cut(state: State, old: Sequence[int], new: Sequence[int]) -> None:
    """Crop the state to the prefix that `new` shares with `old`, the tokens whose keys and values are still valid."""
    shared, end = 0, min(len(old), len(new))
    while shared < end and old[shared] == new[shared]:
        shared += 1
    state.crop(shared if shared >= state.oldest_crop else 0)
