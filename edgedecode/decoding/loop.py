"""The decode loop: prefill, then propose, verify and keep until the limit.

Plain decoding is the same loop with empty drafts. `decode` is deliberately one long function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from edgedecode.errors import ContextExceeded, InputError
from edgedecode.sampling.sampler import Noise, Sampler

from .constraint import Constraint, forced_draft
from .drafting import Drafting
from .drafts import EMPTY_DRAFT, WRITER, Draft
from .model import AdapterUse, LanguageModel, State
from .policy import kind_of
from .stats import Stats
from .switching import Switching
from .verify import Outcome, Rule, TargetRows, Verdict, unverified, verify

__all__ = ["PREFILL_CHUNK", "DecodeSetting", "decode", "prefill"]

PREFILL_CHUNK = 512
"""Prompt tokens per prefill pass. An interrupt waits for one chunk at most; finished chunks stay in the KV cache."""


def _no_pause() -> None:
    """Default pause: does nothing."""


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
    pause: Callable[[], None] = _no_pause
    """Called between two prefill passes: other threads may use the models, and an exception ends the generation."""


def prefill(model: LanguageModel, state: State, tokens: Sequence[int]) -> None:
    """Append tokens in chunks without computing logits, and settle them."""
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = tokens[start : start + PREFILL_CHUNK]
        model.forward(chunk, state, rows="none")
        state.keep(range(len(chunk)))


def decode(
    target: LanguageModel,
    state: State,
    *,
    tokens: list[int],
    max_tokens: int,
    setting: DecodeSetting,
    stats: Stats,
) -> Iterator[Verdict]:
    """Generate after `tokens`, appending to them; yield each round's verdict once its tokens are appended.

    If `stats` already count rounds, they continue to count the same answer, after another prompt.
    `state` must hold a prefix of `tokens`, of any length; pending rows are dropped. Generation ends after a token of
    `setting.ends`, after `max_tokens`, or when the context is full, at `state.capacity`. Closing the iterator at any
    point leaves `tokens` and `state` usable: the state's settled positions are a prefix of the tokens.
    Raises ContextExceeded when the tokens leave no room, InputError when there are none. The algorithm is speculative
    decoding (Leviathan, 2211.17192) with any drafter.
    """
    if not tokens:
        raise InputError("there are no tokens to continue: a prompt has at least one")
    sampler, noise, drafting = setting.sampler, setting.noise, setting.drafting
    switching, constraint = setting.switching, setting.constraint
    clock = setting.clock
    if len(tokens) >= state.capacity:
        raise ContextExceeded.of(f"{len(tokens)} tokens", state.capacity, remedy="an answer needs room too")
    started = clock()
    limit = min(len(tokens) + max_tokens, state.capacity)
    sampler.begin(tokens, generated=stats.tokens)
    length = min(state.length, len(tokens) - 1)
    state.crop(length if length >= state.oldest_crop else 0)  # recurrent states may need a new prefill
    if stats.rounds == 0:
        stats.prompt_tokens, stats.cached_tokens = len(tokens), state.length
    if drafting is not None:
        drafting.begin(tokens, kind_of(setting.adapter, structured=constraint is not None))
    if switching is None:
        _catch_up(target, state, tokens, setting)
    else:
        switching.begin(tokens, generated=stats.tokens)

    verdict: Verdict | None = None
    first, now = True, started
    while len(tokens) < limit:
        # Switch: the draft model writes while it is sure. With checks, its tokens become the draft.
        draft = EMPTY_DRAFT
        if switching is not None:
            written = switching.write(tokens, limit - len(tokens) - switching.checks)
            if written and switching.checks:
                draft = Draft(tuple(written), source=WRITER)
            elif written:
                verdict = unverified(written, sampler, ends=setting.ends)
                tokens += written
                sampler.extend(written)
                stats.count_unverified(verdict, seconds=clock() - now, first=first)
                first = False
                yield verdict
                if verdict.outcome is Outcome.ENDED:
                    return
                now = clock()
                continue
            _catch_up(target, state, tokens, setting)

        # Propose. The prompt's last pass carries no draft, so that nothing delays the first token.
        proposed = now
        drafts = verdict is not None and not len(draft)
        left = limit - len(tokens) - 1
        if switching is not None:
            left = min(left, switching.draft_room)
            drafts = drafts and left > 0
        if constraint is not None and drafts:
            draft = forced_draft(constraint, left)
            drafts = not len(draft)
        forced = len(draft) if constraint is not None else 0
        asked = drafting if drafting is not None and drafts and drafting.asks() else None
        if asked is not None:
            draft = asked.propose(tokens, room=left, constraint=constraint)
            proposed = clock()

        # Score: one pass over the pending tokens and the draft after them.
        unread = len(tokens) - state.length
        row_tokens = [*tokens[state.length :], *draft.tokens]
        parents = None
        if draft.parents is not None:
            parents = [*range(-1, unread - 1), *(parent + unread for parent in draft.parents)]
        rows = range(unread - 1, len(row_tokens))
        logits = target.forward(row_tokens, state, parents=parents, rows=rows, adapter=setting.adapter).logits
        scored = clock()

        # Verify, and settle the accepted path.
        noise.position = len(tokens)
        verdict = verify(draft, TargetRows(logits, sampler, constraint), noise, ends=setting.ends, rule=setting.rule)
        verified = clock()
        state.keep([*range(unread), *(unread + node for node in verdict.path)])
        tokens += verdict.tokens
        sampler.extend(verdict.tokens)
        if constraint is not None:
            constraint.extend(verdict.tokens)
        stats.count(verdict, why=drafting.plan.reason if drafting is not None and not first else "")
        if switching is not None:
            switching.observe(verdict, logits)
        kept = observed = clock()
        if asked is not None:
            asked.observe(tokens, verdict)
            observed = clock()
        if first:
            first = False
            stats.prefill_seconds += kept - started
            stats.time_to_first_token = stats.time_to_first_token or kept - started
        else:
            stats.spend(
                draft=proposed - now + observed - kept,
                verify=scored - proposed,
                sample=verified - scored,
                host=kept - verified,
                plain=unread == 1 and not len(draft),
            )
            counts = (switching is None or asked is not None) and not forced
            if drafting is not None and counts:
                drafting.spent(verdict, pass_seconds=scored - proposed, host_seconds=observed - scored + proposed - now)
        yield verdict
        if verdict.outcome is Outcome.ENDED:
            return
        now = clock()


def _catch_up(target: LanguageModel, state: State, tokens: Sequence[int], setting: DecodeSetting) -> None:
    """Prefill the tokens that the state lacks, in chunks, except for those that the next pass processes."""
    while True:
        unread = len(tokens) - state.length
        count = min(unread, PREFILL_CHUNK)
        plain = setting.adapter_from - state.length if setting.adapter is not None else 0
        if 0 < plain < unread:
            count = min(count, plain)
        elif count == unread:
            break
        chunk = tokens[state.length : state.length + count]
        target.forward(chunk, state, rows="none", adapter=None if plain > 0 else setting.adapter)
        state.keep(range(count))
        setting.pause()
