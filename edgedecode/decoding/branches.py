"""Several answers in one KV state, which are the branches of one tree: to one prompt, or to prompts that begin alike.

What the prompts share is settled. Each branch is a path of pending rows below it that grows with every pass: a pass has
one row for each branch, or one row together for branches that have the same tokens until now. A branch draws its tokens
with noise of its own, so that its text is the one that `decode` writes with the branch's setting alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from edgedecode.arrays import FloatArray

from .drafts import EMPTY_DRAFT
from .loop import DecodeSetting, begin_answer, prefilled
from .model import LanguageModel, Output, State
from .stats import Stats, Stopwatch
from .verify import Outcome, TargetRows, Verdict, verify

__all__ = ["Branch", "decode_branches"]

HEADROOM = 64
"""Free rows that a branch needs to begin, or to go on after the state was full. Lower: it is soon full again."""


@dataclass(slots=True)
class Branch:
    """One of several answers. setting: without drafting and switching. tokens: the prompt's and its own so far."""

    number: int
    setting: DecodeSetting
    stats: Stats
    tokens: list[int]
    done: bool = False
    """Whether it has ended. Who reads its verdicts may end it too, or give it another one's `tokens` and `rows`."""
    rows: list[int] = field(default_factory=list, init=False)
    """The pending rows of its tokens behind the settled ones, as far as the state holds them."""
    limit: int = field(default=0, init=False)
    """Its most tokens, the prompt's included."""


def decode_branches(
    target: LanguageModel, state: State, branches: Sequence[Branch], *, max_tokens: int, most_rows: int
) -> Iterator[Sequence[tuple[Branch, Verdict]] | None]:
    """Generate after the branches' tokens; yield each pass's verdicts once tokens are appended.

    After each piece of a long prompt it yields None: another thread may use the models then. most_rows: of logits in a
    pass. All settings have the same adapter and clock. If there are more branches than rows, or the state has no room
    for all of them, the last ones wait until the others have ended: any number goes with the room of one. Limits,
    errors and closing as `decode`.
    """
    first, shared = branches[0].setting, _shared([branch.tokens for branch in branches])
    watch = Stopwatch(first.clock)
    state.crop(min(state.length, len(shared)))
    for branch in branches:
        branch.limit = min(len(branch.tokens) + max_tokens, state.capacity)
        begin_answer(state, branch.tokens, setting=branch.setting, stats=branch.stats)
    for _ in prefilled(target, state, shared, first):
        yield None
    if rest := shared[state.length :]:  # settled, so that no branch needs a path through it
        target.forward(rest, state, rows="none", adapter=first.adapter)
        state.keep(range(len(rest)))
    while live := [branch for branch in branches if not branch.done]:
        running = [branch for branch in live if branch.rows]
        _settle_common(live, state)
        chain = len(running) == 1 and state.pending == len(running[0].rows)
        rows = state.capacity if chain else target.card.tree_rows or state.capacity
        room = min(state.capacity - state.length, rows) - state.pending
        if not running or sum(len(_unread(branch, state)) for branch in running) > room:
            running = _restarted(live, state, most=most_rows, rows=target.card.tree_rows or state.capacity)
        output, places = _pass(target, state, running)
        watch.lap("verify")
        found = [
            (branch, _drawn(branch, [output.logits[place]])) for branch, place in zip(running, places, strict=True)
        ]
        watch.lap("sample")
        for branch, verdict in found:
            _settle(branch, verdict, watch)
        yield found
        watch.start()
    state.crop(state.length)


def _shared(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return what all prompts begin with, without the last token of any."""
    most = min(map(len, prompts)) - 1
    columns = zip(*(prompt[:most] for prompt in prompts), strict=True)
    alike = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return list(prompts[0][:alike])


def _settle_common(live: Sequence[Branch], state: State) -> None:
    """Settle the path of branches that are all alike until now, or of the last one: they then decode as one answer."""
    path = live[0].rows
    if path and all(branch.rows[-1:] == path[-1:] for branch in live):
        state.keep(path)
        for branch in live:
            branch.rows = []


def _unread(branch: Branch, state: State) -> list[int]:
    """Return the tokens that the state does not hold; usually one, the last."""
    return branch.tokens[state.length + len(branch.rows) :]


def _restarted(live: Sequence[Branch], state: State, *, most: int, rows: int) -> list[Branch]:
    """Drop all pending rows, also those of ended branches; return the branches, at most `most`, with room to go on.

    rows: that may be pending where they branch.
    """
    state.crop(state.length)
    room, running = min(rows, state.capacity - state.length), list[Branch]()
    for branch in live:
        branch.rows.clear()
        room -= min(len(branch.tokens) + HEADROOM, branch.limit) - state.length
        if (room >= 0 and len(running) < most) or not running:
            running.append(branch)
    return running


def _pass(target: LanguageModel, state: State, group: Sequence[Branch]) -> tuple[Output, list[int]]:
    """Append the branches' unread tokens; return the output, and which of its rows each branch draws from."""
    rows: dict[tuple[int, int], int] = {}
    """Parent and token → pending row, so that branches that are still alike share their rows."""
    start = state.pending
    for branch in group:
        row = branch.rows[-1] if branch.rows else -1
        for token in _unread(branch, state):
            row = rows.setdefault((row, token), start + len(rows))
            branch.rows.append(row)
    ends = sorted({branch.rows[-1] for branch in group})
    output = target.forward(
        [token for _, token in rows],
        state,
        parents=[parent for parent, _ in rows],
        rows=[row - start for row in ends],
        adapter=group[0].setting.adapter,
    )
    return output, [ends.index(branch.rows[-1]) for branch in group]


def _drawn(branch: Branch, logits: Sequence[FloatArray]) -> Verdict:
    """Return what a branch draws from these rows of logits."""
    setting = branch.setting
    setting.noise.position = len(branch.tokens)
    rows = TargetRows(logits, setting.sampler, setting.constraint)
    return verify(EMPTY_DRAFT, rows, setting.noise, ends=setting.ends)


def _settle(branch: Branch, verdict: Verdict, watch: Stopwatch) -> None:
    """Append what a round has drawn, and count it."""
    branch.tokens += verdict.tokens
    branch.setting.sampler.extend(verdict.tokens)
    if branch.setting.constraint is not None:
        branch.setting.constraint.extend(verdict.tokens)
    branch.stats.count(verdict)
    if branch.stats.rounds == 1:
        branch.stats.prefilled(watch.round.total)
    else:
        branch.stats.spend(watch.round)
    branch.done = verdict.outcome is Outcome.ENDED or len(branch.tokens) >= branch.limit
