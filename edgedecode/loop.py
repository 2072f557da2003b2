"""The decode loop: read, then propose, verify, keep, until the limit. Knows no text, no engine and no drafter by name.

Plain decoding is the same loop with empty drafts. The one long function of the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from edgedecode.drafting import Drafting
from edgedecode.errors import ContextExceeded, InputError
from edgedecode.protocols import LanguageModel, State
from edgedecode.sampling import Noise, Sampler
from edgedecode.stats import Stats
from edgedecode.types import EMPTY_DRAFT, AdapterUse, Outcome
from edgedecode.verify import Rule, TargetRows, Verdict, verify

__all__ = ["PREFILL_CHUNK", "DecodeSetting", "decode"]

PREFILL_CHUNK = 512
"""Prompt tokens read per pass: an interrupt waits for one chunk at most, and what was read stays read."""


@dataclass(frozen=True, slots=True)
class DecodeSetting:
    """The parts of one generation. Without drafting, or with plans of 0, it is plain decoding.

    min_width 2 pads one-row passes with a row that is dropped, so that every pass uses the engine's many-row kernels
    and chains of any length give bit-identical text.
    """

    sampler: Sampler
    noise: Noise
    drafting: Drafting | None = None
    rule: Rule = Rule.MATCH
    ends: frozenset[int] = frozenset()
    adapter: AdapterUse | None = None
    """What the target reads every row with; what the state holds was read with it too."""
    min_width: int = 1


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

    `state` must hold a prefix of `tokens` (its length may be anything up to theirs; pending rows are dropped). Ends
    after a token of `setting.ends`, after `max_tokens`, or when the context (`state.capacity`) is full. Closing the
    iterator at any point leaves `tokens` and `state` usable: the state's settled positions are a prefix of the tokens.
    Raises ContextExceeded when the tokens leave no room, InputError when there are none. The loop is Leviathan's
    (2211.17192) with any drafter.
    """
    if not tokens:
        raise InputError("there are no tokens to continue: a prompt has at least one")
    if len(tokens) >= state.capacity:
        raise ContextExceeded(f"{len(tokens)} tokens leave no room in a context of {state.capacity}")
    started = perf_counter()
    limit = min(len(tokens) + max_tokens, state.capacity)
    sampler, noise, drafting = setting.sampler, setting.noise, setting.drafting
    sampler.begin(tokens)
    length = min(state.length, len(tokens) - 1)
    state.crop(length if length >= state.oldest_crop else 0)  # a recurrent memory may have to be read again
    stats.prompt_tokens, stats.cached_tokens = len(tokens), state.length
    if drafting is not None:
        drafting.begin(tokens)
    while len(tokens) - state.length > PREFILL_CHUNK:
        chunk = tokens[state.length : state.length + PREFILL_CHUNK]
        target.forward(chunk, state, rows="none", adapter=setting.adapter)
        state.keep(range(PREFILL_CHUNK))

    verdict: Verdict | None = None
    now = started
    while len(tokens) < limit:
        # Propose. The prompt's own pass carries no draft: nothing may delay the first token.
        draft = EMPTY_DRAFT
        if drafting is not None and verdict is not None:
            draft = drafting.propose(tokens, room=limit - len(tokens) - 1)
        proposed = perf_counter()

        # Score: one pass over what the state has not read, and the draft after it.
        unread = len(tokens) - state.length
        row_tokens = [*tokens[state.length :], *draft.tokens]
        parents = None
        if draft.parents is not None:
            parents = [*range(-1, unread - 1), *(parent + unread for parent in draft.parents)]
        rows = range(unread - 1, len(row_tokens))
        if (padding := setting.min_width - len(row_tokens)) > 0:
            row_tokens += row_tokens[-1:] * padding
            parents = None if parents is None else [*parents, *[-1] * padding]
        output = target.forward(row_tokens, state, parents=parents, rows=rows, adapter=setting.adapter)
        scored = perf_counter()

        # Verify, and settle the accepted path.
        noise.position = len(tokens)
        verdict = verify(draft, TargetRows(output.logits, sampler), noise, ends=setting.ends, rule=setting.rule)
        verified = perf_counter()
        state.keep([*range(unread), *(unread + node for node in verdict.path)])
        tokens += verdict.tokens
        sampler.extend(verdict.tokens)
        stats.count(verdict, why=drafting.plan.reason if drafting is not None and stats.rounds else "")
        kept = perf_counter()
        if drafting is not None:
            drafting.observe(tokens, verdict)
        observed = perf_counter()
        if stats.rounds == 1:
            stats.time_to_first_token = stats.prefill_seconds = kept - started
        else:
            stats.time.draft += proposed - now + observed - kept
            stats.time.verify += scored - proposed
            stats.time.sample += verified - scored
            stats.time.host += kept - verified
            if drafting is not None:
                drafting.spent(verdict, pass_seconds=scored - proposed, host_seconds=observed - scored + proposed - now)
        yield verdict
        if verdict.outcome is Outcome.ENDED:
            return
        now = perf_counter()
