"""Several answers to one prompt, which a session decodes together in its KV cache."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from edgedecode.decoding.branches import Branch, decode_branches
from edgedecode.decoding.constraint import Constraint
from edgedecode.decoding.loop import DecodeSetting
from edgedecode.decoding.stats import FinishReason, Stats
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.sampling.sampler import Noise
from edgedecode.sessions.chunks import TARGET_SOURCE, Chunk, Reply
from edgedecode.sessions.resources import Resources
from edgedecode.sessions.turns import Turns
from edgedecode.text.transcript import Turn

if TYPE_CHECKING:  # few answers are scored
    from edgedecode.sessions.scored import Particles

_SEEDS = 1 << 64


class Sample(NamedTuple):
    """One of the answers, before it begins."""

    reply: Reply
    stats: Stats
    noise: Noise
    constraint: Constraint | None


def new_samples(
    seeds: Iterable[int], *, reply: Callable[[], Reply], budget: Budget, constraint: Callable[[], Constraint | None]
) -> list[Sample]:
    """Return the answers with these seeds. reply, constraint: begin an answer's. Raises as both."""
    return [
        Sample(
            reply(),
            Stats(mode="samples", seed=each % _SEEDS, planned_nbytes=budget.used_nbytes),
            Noise(each % _SEEDS),
            constraint(),
        )
        for each in seeds
    ]


def sampled(
    shared: Resources,
    turns: Turns,
    every: Sequence[Turn],
    samples: Sequence[Sample],
    setting: Callable[[Noise, Constraint | None], DecodeSetting],
    *,
    limit: int,
    rows: int,
    particles: Callable[[Sequence[Branch], list[Reply]], "Particles"] | None = None,
) -> Generator[Chunk | None]:
    """Yield the chunks of all answers, and None where other threads may use the models. rows: of logits in a pass.

    every: the turn of each answer. setting: called once the first has begun. particles: makes what scores the answers,
    whose chunks then come at the end. The transcript stays as it was.
    """
    with turns.unrecorded(every[0]):
        yield from turns.dropped(every[0])
        shared.mind_memory()
        for turn, sample in zip(every, samples, strict=True):
            if sample.constraint is not None:
                sample.constraint.begin(turn.tokens)
        branches = [
            Branch(number, setting(sample.noise, sample.constraint), sample.stats, list(turn.tokens))
            for number, (turn, sample) in enumerate(zip(every, samples, strict=True))
        ]
        replies = [sample.reply for sample in samples]
        scored = None if particles is None else particles(branches, replies)
        for found in decode_branches(shared.target, turns.state, branches, max_tokens=limit, most_rows=rows):
            if found is None:
                yield None
                continue
            said = [  # all are made before other threads may use the models
                (branch.number, _said(replies[branch.number], branch, verdict, context=turns.context))
                for branch, verdict in found
            ]
            if scored is None:
                yield from _numbered(said)
            else:
                for number, chunks in said:
                    scored.add(number, chunks)
                scored.resample()
                yield None
            shared.mind_memory()
        if scored is not None:
            yield from _numbered(enumerate(scored.chunks))


def _numbered(said: Iterable[tuple[int, list[Chunk]]]) -> Iterator[Chunk]:
    return (replace(chunk, number=number) for number, chunks in said for chunk in chunks)


def _said(reply: Reply, branch: Branch, verdict: Verdict, *, context: int) -> list[Chunk]:
    """Return a round's chunks of one answer, the last one if it ends."""
    said = reply.said(verdict, branch.tokens, branch.stats)
    stopped = bool(reply.matched) or verdict.outcome is Outcome.ENDED
    branch.done |= stopped
    if branch.done:
        branch.stats.peak_nbytes = peak_nbytes()
        branch.stats.context_full = not stopped and len(branch.tokens) >= context
        said.append(Chunk(reply.rest(), (), TARGET_SOURCE, FinishReason.STOP if stopped else FinishReason.LENGTH))
    return said
