"""The decode loop: prefill, then propose, score, verify and settle, round by round, until the limit.

Read `export/bundles/device/decode.py` first: the same algorithm for greedy chains, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from edgedecode.errors import ContextExceeded, InputError
from edgedecode.sampling.sampler import Noise, Sampler

from .drafting import Drafting
from .drafts import WRITER
from .model import AdapterUse, LanguageModel, State
from .policy import kind_of
from .stats import Stats, Stopwatch
from .verify import Outcome, Rule, TargetRows, Verdict, unverified, verify
from .writers import Switching, Writers

if TYPE_CHECKING:  # few answers have one
    from .constraint import Constraint

__all__ = ["PREFILL_CHUNK", "DecodeSetting", "begin_answer", "decode", "prefill", "prefilled"]

PREFILL_CHUNK = 512
"""Prompt tokens per prefill pass. An interrupt waits for one chunk at most; finished chunks stay in the KV cache."""


@dataclass(frozen=True, slots=True)
class DecodeSetting:
    """The parts of one generation. Without drafting, or with plans of 0, it is plain decoding."""

    sampler: Sampler
    noise: Noise
    drafting: Drafting | None = None
    rule: Rule = Rule.MATCH
    ends: frozenset[int] = frozenset()
    adapter: AdapterUse | None = None
    """The target's adapter for its rows, including those that the state already holds."""
    adapter_from: int = 0
    """The first position that is processed with the adapter; earlier ones are processed without any."""
    clock: Callable[[], float] = perf_counter
    """Seconds; the same clock as the drafting's."""
    switching: Switching | None = None
    """Lets the draft model write tokens; None: every token is the target's."""
    constraint: Constraint | None = None
    """Restricts the tokens, in the state after those of the answer so far; None: all are allowed."""


def prefill(model: LanguageModel, state: State, tokens: Sequence[int]) -> None:
    """Append tokens in chunks without computing logits, and settle them."""
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        model.forward(chunk, state, rows="none")
        state.keep(range(len(chunk)))


def decode(
    target: LanguageModel, state: State, *, tokens: list[int], max_tokens: int, setting: DecodeSetting, stats: Stats
) -> Iterator[Verdict | None]:
    """Generate after `tokens`, appending to them; yield each round's verdict once its tokens are appended.

    After each piece of a long prompt it yields None: another thread may use the models then.
    If `stats` already count rounds, they continue to count the same answer, after another prompt.
    `state` must hold a prefix of `tokens`, of any length; pending rows are dropped. Generation ends after a token of
    `setting.ends`, after `max_tokens`, or when the context is full, at `state.capacity`. Closing the iterator at any
    point leaves `tokens` and `state` usable: the state's settled positions are a prefix of the tokens.
    Raises ContextExceeded when the tokens leave no room, InputError when there are none. The algorithm is speculative
    decoding (Leviathan, 2211.17192) with any drafter.
    """
    sampler, noise, watch = setting.sampler, setting.noise, Stopwatch(setting.clock)
    limit = min(len(tokens) + max_tokens, state.capacity)
    writers = _begin(state, tokens, setting=setting, stats=stats)
    while (room := limit - len(tokens)) > 0:
        # Propose.
        draft = writers.propose(tokens, room)
        watch.lap("draft")
        if draft.source == WRITER:  # the draft model writes alone
            verdict = unverified(draft, sampler, ends=setting.ends)
        else:
            # Prefill what the target has not processed, except for its next pass.
            for _ in prefilled(target, state, tokens, setting):
                yield None
                watch.lap("verify")

            # Score: one pass over the unread tokens and the draft after them.
            row_tokens, unread = [*tokens[state.length :], *draft.tokens], len(tokens) - state.length
            parents = None
            if draft.parents is not None:
                parents = [*range(-1, unread - 1), *(parent + unread for parent in draft.parents)]
            rows = range(unread - 1, unread + len(draft))
            output = target.forward(row_tokens, state, parents=parents, rows=rows, adapter=setting.adapter)
            watch.lap("verify")

            # Verify, and keep the accepted path.
            noise.position = len(tokens)
            scored = TargetRows(output.logits, sampler, setting.constraint)
            verdict = verify(draft, scored, noise, ends=setting.ends, rule=setting.rule)
            watch.lap("sample")
            state.keep([*range(unread), *(unread + node for node in verdict.path)])

        # Settle.
        tokens += verdict.tokens
        sampler.extend(verdict.tokens)
        stats.count(verdict, why=writers.reason)
        writers.settle(tokens, verdict, watch)
        if writers.rounds == 1:
            stats.prefilled(watch.round.total)
        else:
            stats.spend(watch.round, plain=verdict.verified and len(row_tokens) == 1)
        yield verdict
        if verdict.outcome is Outcome.ENDED:
            return
        watch.start()


def begin_answer(state: State, tokens: Sequence[int], *, setting: DecodeSetting, stats: Stats) -> None:
    """Tell the sampler that a generation starts, roll the state back to a prefix of the tokens, and count them.

    Raises InputError if there are no tokens, and ContextExceeded if they leave no room for an answer.
    """
    if not tokens:
        raise InputError("there are no tokens to continue: a prompt has at least one")
    if len(tokens) >= state.capacity:
        raise ContextExceeded.of(f"{len(tokens)} tokens", state.capacity, remedy="an answer needs room too")
    setting.sampler.begin(tokens, generated=stats.tokens)
    length = min(state.length, len(tokens) - 1)
    state.crop(length if length >= state.oldest_crop else 0)  # recurrent states may need a new prefill
    if stats.rounds == 0:
        stats.prompt_tokens, stats.cached_tokens = len(tokens), state.length


def _begin(state: State, tokens: Sequence[int], *, setting: DecodeSetting, stats: Stats) -> Writers:
    """Roll the state back to a prefix of the tokens, and tell everyone who takes part that a generation starts."""
    begin_answer(state, tokens, setting=setting, stats=stats)
    writers = Writers(setting.drafting, setting.switching, setting.constraint)
    structured = setting.constraint is not None and setting.constraint.structured
    kind = kind_of(setting.adapter, structured=structured)
    writers.begin(tokens, generated=stats.tokens, kind=kind)
    return writers


def prefilled(target: LanguageModel, state: State, tokens: Sequence[int], setting: DecodeSetting) -> Iterator[int]:
    """Prefill the tokens that the state lacks, except for those of the next pass; yield each chunk's length."""
    while (unread := len(tokens) - state.length) > 1:
        count = min(unread, PREFILL_CHUNK)
        plain = setting.adapter_from - state.length if setting.adapter is not None else 0
        if 0 < plain < unread:
            count = min(count, plain)
        elif count == unread:
            return
        chunk = tokens[state.length : state.length + count]
        target.forward(chunk, state, rows="none", adapter=None if plain > 0 else setting.adapter)
        state.keep(range(count))
        yield count
