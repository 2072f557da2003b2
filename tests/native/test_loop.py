"""The native decode loop against Python's on toy models: the same ids, rounds and counts, with a virtual clock."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.heads import HeadOutput
from edgedecode.decoding.loop import DecodeSetting, decode
from edgedecode.decoding.model import State
from edgedecode.decoding.policy import FixedLength, Policy
from edgedecode.decoding.stats import Stats
from edgedecode.drafters.model_drafter import HeadSource, ModelSource
from edgedecode.drafters.recycle import RecycleSource
from edgedecode.drafters.source import DraftSetting
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.memory.budget import Budget, Lease
from edgedecode.sampling.sampler import Noise, Sampler
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.testing import TableModel, TableState, toy_tables
from tests.native.conftest import Check
from tests.toys import TrimmedTable, padded

VOCABULARY, PADDED, CAPACITY = 40, 3, 900
KEPT = 100
SOURCES = {
    "suffix": SuffixSource(),
    "recycle": RecycleSource(),
    "model": ModelSource(),
    "head": HeadSource(),
}
ABSENT = {"seed", "alone_tokens", "unverified_tokens", "thought_tokens", "switches", "signals", "handed_over_at"}


class Features:
    """What the state keeps, under the protocol's names: a state's `rows` are its pending ones."""

    def __init__(self, state: "Target") -> None:
        self._state = state

    @property
    def oldest(self) -> int:
        return max(0, self._state.length - KEPT)

    def rows(self, start: int, stop: int) -> FloatArray:
        return np.array(self._state.tokens[start:stop], np.float32)[:, None]


class Target(TableState):
    """A target's state whose feature at a position is the token there."""

    def __init__(self, capacity: int, lease: Lease) -> None:
        super().__init__(capacity, lease)
        self._kept = Features(self)

    def keep_features(self) -> Features:
        return self._kept


class TableHead(TableModel):
    """A head: what it guesses depends on the last token, and on the feature or the output that the last row reads."""

    def draft(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        features: FloatArray | None = None,
        hidden: FloatArray | None = None,
    ) -> HeadOutput:
        assert isinstance(state, TableState)
        read = features if features is not None else hidden
        assert read is not None
        start = state.pending
        state.rows += tokens
        state.parents += range(start - 1, start - 1 + len(tokens))
        self.passes.append(len(tokens))
        row: FloatArray = self._first[tokens[-1]] + self._second[int(read[-1, 0])]
        return HeadOutput(row, np.array([tokens[-1]], np.float32))


class Turns:
    """Tokens of even and odd id in turn; every fifth is forced."""

    structured = True

    def begin(self, prompt: Sequence[int]) -> None:
        self._count = self._path = 0

    def _forced(self, count: int) -> bool:
        return count % 5 == 4

    def _allows(self, token: int, count: int) -> bool:
        return token == count % VOCABULARY if self._forced(count) else (token + count) % 2 == 0

    def forced(self) -> Sequence[int]:
        return (self._count % VOCABULARY,) if self._forced(self._count) else ()

    def allows(self, tokens: Sequence[int]) -> int:
        places = range(len(tokens))
        return next((n for n in places if not self._allows(tokens[n], self._count + n)), len(tokens))

    def masked(self, row: FloatArray, path: Sequence[int]) -> FloatArray:
        count = self._count + len(path)
        result = np.full_like(row, -np.inf)
        allowed = [token for token in range(VOCABULARY) if self._allows(token, count)]
        result[allowed] = row[allowed]
        return result

    def accepts(self, token: int, path: Sequence[int]) -> bool:
        return True

    def extend(self, tokens: Sequence[int]) -> None:
        self._count += len(tokens)


@dataclass(frozen=True)
class Case:
    """The parts of a session. fixed: the draft length, 0: the scheduler chooses. noise: how far the draft is off."""

    drafters: tuple[str, ...] = ()
    fixed: int = 0
    noise: float = 1.0
    trimmed: bool = False
    sampling: dict[str, Any] | None = None
    constrained: bool = False
    scale: float = 2.0

    @property
    def options(self) -> dict[str, Any]:
        return self.sampling or {}


class Answers:
    """A session on toy models in Python; `line` is its setting for the native one."""

    def __init__(self, case: Case, folder: Path, seed: int) -> None:
        tables = padded(toy_tables(VOCABULARY, seed=seed, scale=case.scale), rows=PADDED)
        near = toy_tables(VOCABULARY, seed=seed + 1, scale=case.noise, near=tuple(t[:, :VOCABULARY] for t in tables))
        near = padded(near, rows=PADDED)
        ids = [id for id in range(VOCABULARY) if id % 4] if case.trimmed else []
        self.case, self.passes = case, 1 / 64
        self.target = TableModel(tables, context=CAPACITY)
        self.draft = TableHead(near, context=CAPACITY)
        for model in (self.target, self.draft):
            model.card = replace(model.card, vocabulary_size=VOCABULARY)
        self.budget, self.noise = Budget(), Noise(0)
        self.state = Target(CAPACITY, self.budget.reserve("kv", 1))
        self.sampling = replace(SamplingOptions(**case.options), dry_sequence_breakers=(3, 5))
        setting = DraftSetting(
            budget=self.budget,
            sampling=self.sampling,
            vocabulary_size=VOCABULARY,
            capacity=CAPACITY,
            draft_model=TrimmedTable(self.draft, ids) if ids else self.draft,  # type: ignore[arg-type]
            ends=frozenset({0}),
            noise=self.noise,
            draft_max=case.fixed or 16,
            target_state=self.state,
        )
        self.drafting = self._drafting([SOURCES[name].open(setting) for name in case.drafters])
        self.sampler = Sampler(self.sampling, vocabulary_size=VOCABULARY)
        for name, parts in (("target", tables), ("draft", near)):
            (folder / name).write_bytes(b"".join(table.tobytes() for table in parts))
        self.line = {
            "target": str(folder / "target"),
            "draft": str(folder / "draft"),
            "draft_ids": ids,
            "vocabulary": VOCABULARY,
            "rows": tables[0].shape[1],
            "context": CAPACITY,
            "capacity": CAPACITY,
            "drafters": case.drafters,
            "fixed": case.fixed,
            "sampling": case.options,
            "ends": [0],
            "pass_seconds": self.passes,
        }

    def clock(self) -> float:
        return self.passes * sum((len(self.target.passes) * 1.0, len(self.draft.passes) * 0.1))

    def _drafting(self, drafters: Sequence[Drafter]) -> Drafting | None:
        if not drafters:
            return None
        free, models = ([each.name for each in drafters if each.free is kind] for kind in (True, False))
        policy: Policy = Scheduler(free=free, models=models, experience=Experience())
        if self.case.fixed:
            policy = FixedLength(self.case.fixed)
        return Drafting(drafters, policy, noise=Noise(0, stream=1), offers=not self.case.fixed, clock=self.clock)

    def answer(self, prompt: Sequence[int], seed: int, max_tokens: int) -> dict[str, Any]:
        tokens, stats = [*prompt], Stats(mode="auto")
        self.noise.begin(seed)
        constraint = Turns() if self.case.constrained else None
        if constraint is not None:
            constraint.begin(prompt)
        setting = DecodeSetting(
            sampler=self.sampler,
            noise=self.noise,
            drafting=self.drafting,
            ends=frozenset({0}),
            clock=self.clock,
            constraint=constraint,
        )
        rounds = []
        for verdict in decode(
            self.target, self.state, tokens=tokens, max_tokens=max_tokens, setting=setting, stats=stats
        ):
            if verdict is not None:
                draft = verdict.draft
                rounds.append([[*verdict.tokens], len(verdict.path), draft.source, [*draft.tokens], draft.match])
        return {
            "tokens": tokens[len(prompt) :],
            "rounds": rounds,
            "stats": json.loads(stats.to_json()),
            "passes": [len(self.target.passes), len(self.draft.passes)],
        }


SEEDED = {"temperature": 0.9, "top_p": 0.95}
PENALTIES = {"temperature": 0.8, "repetition_penalty": 1.2, "frequency_penalty": 0.1, "top_k": 12}
RARE = {"temperature": 1.0, "mirostat": 2, "mirostat_tau": 3.0, "dry_multiplier": 0.5}
COPIES = {"temperature": 0.2}
CASES = {
    "plain": Case(),
    "plain, seeded": Case(sampling=SEEDED),
    "rare options": Case(sampling=RARE),
    "lookups": Case(("suffix", "recycle"), scale=4.0),
    "lookups, seeded": Case(("suffix", "recycle"), sampling=COPIES, scale=3.0),
    "lookup, fixed": Case(("suffix",), fixed=5, sampling=COPIES),
    "recycled, fixed": Case(("recycle",), fixed=4, sampling=SEEDED),
    "draft model": Case(("model", "suffix"), noise=0.3),
    "draft model, seeded": Case(("model", "suffix"), noise=0.5, sampling=SEEDED),
    "draft model, penalties": Case(("model", "suffix"), noise=0.3, sampling=PENALTIES),
    "draft model, fixed": Case(("model",), fixed=7, noise=0.5, sampling=PENALTIES),
    "bad draft model": Case(("model", "suffix"), noise=3.0, sampling=SEEDED),
    "trimmed": Case(("model",), noise=0.2, trimmed=True, sampling=SEEDED),
    "trimmed, greedy": Case(("model", "suffix"), noise=0.2, trimmed=True),
    "head": Case(("head", "suffix"), noise=0.3),
    "head, seeded": Case(("head", "suffix"), noise=0.3, sampling=SEEDED),
    "head, fixed": Case(("head",), fixed=4, noise=0.3, sampling=SEEDED),
    "trimmed, fixed": Case(("model",), fixed=9, noise=0.3, trimmed=True, sampling=PENALTIES),
    "constraint": Case(("model", "suffix"), noise=0.3, sampling=SEEDED, constrained=True),
    "constraint, plain": Case(constrained=True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_rounds(native_check: Check, tmp_path: Path, name: str) -> None:
    case, rng = CASES[name], random.Random(name)
    answers = Answers(case, tmp_path, seed=rng.randrange(1000))
    lines, expected, prompt = [answers.line], list[Any]([None]), [7, 8, 9, 7, 8]
    for number in range(12):
        if number == 6:  # another conversation, with a prefill of several pieces
            prompt = [rng.randrange(1, VOCABULARY) for _ in range(600)]
        seed, most = rng.randrange(2**53), rng.choice([1, 5, 40, 120])
        lines.append({"tokens": prompt, "seed": seed, "max_tokens": most, "constrained": case.constrained})
        expected.append(answers.answer(prompt, seed, most))
        prompt = [*prompt, *expected[-1]["tokens"][:-1], *(rng.randrange(1, VOCABULARY) for _ in range(5))]
        prompt = prompt[: CAPACITY - 1]
    found = native_check("loop", lines=lines)
    for native, own in zip(found[1:], expected[1:], strict=True):
        assert native["rounds"] == own["rounds"]
        assert native["tokens"] == own["tokens"]
        assert native["passes"] == own["passes"]
        stats = {key: value for key, value in own["stats"].items() if key not in ABSENT | {"target_share"}}
        assert stats == {key: value for key, value in native["stats"].items() if key != "seed"}
    sources = {source for each in expected[1:] for _, _, source, _, _ in each["rounds"]}
    assert not case.drafters or sources & {*case.drafters}, sources
    accepted = sum(each["stats"]["accepted"] for each in expected[1:])
    assert (accepted > 0) is bool(case.drafters or case.constrained)
