"""What each constant of the scheduler is worth: `python -m tests.scheduler_losses` prints the loss without it.

Replays recorded texts on modelled machines, with the scheduler as it is and with one constant at a time replaced by a
neutral value. `tests/scheduler_texts.json` has the tokens of answers, and for the bundled pair whether the draft
model's likeliest token was right at each position. Lookups are searched for again in each run.
"""

import inspect
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, TypeAlias

from edgedecode.decoding.drafting import Drafting
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Outcome, Verdict
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Noise
from edgedecode.schedule import (
    acceptance,
    cost_model,
    cost_table,
    draft_cost,
    experience,
    ledger,
    medians,
    prices,
    scheduler,
)
from edgedecode.schedule.scheduler import Scheduler
from tests.toys import draft_setting
from tests.virtual import _ROWS, STEP, Clock, Machine, Scripted

MACHINES = {
    "laptop, drafts pay": Machine(row=0.15, draft=0.08, read=0.01, host=0.01, asking=0.005),
    "laptop, rows are dear": Machine(row=0.6, draft=0.2, read=0.03, host=0.01, asking=0.005),
    "accelerator": Machine(row=0.02, draft=0.3, read=0.005, host=0.05, asking=0.02),
}
NOISE = {"jitter": 0.1, "spikes": 0.02}
PACES = (1.0, 1.0, 2.0, 2.0, 1.0)
"""Of consecutive answers on an unsteady machine."""
Case: TypeAlias = tuple[str, str]
"""Machine and kind of text."""
MODULES = (acceptance, cost_model, cost_table, draft_cost, experience, ledger, medians, prices, scheduler)
NEUTRAL: dict[str, Any] = {
    "PRIORS": None,
    "PRIOR_ROUNDS": 1e-3,
    "TEXT_FADE": 1.0,
    "HISTORY_FADE": 1.0,
    "DOUBT": 1.0,
    "STREAK": math.inf,
    "CARRIED": 1.0,
    "DEPTHS": 1,
    "_MIN_CHANCE": 0.0,
    "CONTEXT_BUCKETS": (),
    "PRIOR_BETA": {2: 0.4, 33: 0.4},
    "ENOUGH": 1,
    "MOST_BETA": math.inf,
    "AGEING": 1.0,
    "REACH": 1e-3,
    "REFIT": 1,
    "OUTLIER": 1e9,
    "LATEST": 1,
    "STEADY": 1,
    "DRIFT": 1e9,
    "MEASURE": 1 << 40,
    "GRANT": 0.0,
    "INCOME": 1e-9,
    "MOST": math.inf,
    "OVERDRAFT": math.inf,
    "PROBE": -math.inf,
    "SWITCH": 1.0,
    "HOPE": 0.0,
    "EXPLORED_LENGTH": 64,
    "HORIZON": 1 << 20,
    "READ_WINDOW": 1 << 20,
    "MISSED": 1 << 40,
    "SLACK": 0,
    "STOP_LOSS": math.inf,
    "DOUBT_EVERY": 1 << 40,
    "ASKING_SHARE": 1e9,
    "COLD": 0,
    "MOST_REST": 0,
}
"""By constant, the value with which its idea has no effect."""


class Recorded(Scripted):
    """A draft model that is right where it was right on record."""

    def __init__(self, tokens: Sequence[int], right: str, clock: Clock, *, step: float) -> None:
        super().__init__("model", lambda place: right[place] == "1", clock, step=step)
        self._tokens = tokens

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        place = len(context)
        draft = super().propose(context, min(limit, len(self._tokens) - place), rng, plan)
        return replace(draft, tokens=tuple(-1 if each < 0 else self._tokens[each] for each in draft.tokens))


def spent(policy: Scheduler, text: dict[str, Any], machine: Machine, *, seed: int, pace: float) -> float:
    """Return the steps that the rest of a recorded text after its prompt takes, each as long as a plain pass."""
    tokens, clock = text["tokens"], Clock(machine, seed, pace)
    drafters: list[Any] = [SuffixSource().open(draft_setting(1 << 16, capacity=len(tokens)))]
    if "right" in text:
        drafters.append(Recorded(tokens, text["right"], clock, step=machine.draft))
    drafting = Drafting(drafters, policy, noise=Noise(0, stream=1), offers=True, clock=clock)
    context = tokens[: text["prompt"] + 1]
    drafting.begin(context)
    while (room := len(tokens) - len(context)) > 0:
        started, draft = clock(), drafting.propose(context, room=room - 1)
        clock.spend(machine.host + machine.asking * (drafting._round is not None))
        proposed = clock()
        clock.spend(machine.c(1 + len(draft)))
        seconds, place = clock() - proposed, len(context)
        pairs = zip(draft.tokens, tokens[place:], strict=False)
        accepted = next((index for index, (ours, real) in enumerate(pairs) if ours != real), len(draft))
        outcome = Outcome.BONUS if accepted == len(draft) else Outcome.CORRECTION
        verdict = Verdict(draft, tuple(tokens[place : place + accepted + 1]), tuple(range(accepted)), outcome, _ROWS)
        context += verdict.tokens
        drafting.observe(context, verdict)
        drafting.spent(verdict, pass_seconds=seconds, host_seconds=proposed - started)
    return clock() / STEP


def speeds(texts: dict[str, list[dict[str, Any]]], *, seeds: Sequence[int] = (1, 2)) -> dict[Case, float]:
    """Return tokens per plain step by machine and kind of text; every kind begins with an empty experience."""
    found = {}
    for name, machine in MACHINES.items():
        for steady in (True, False):
            for kind, answers in texts.items():
                tokens = steps = 0.0
                for seed in (0,) if steady else seeds:
                    policy = Scheduler(free=["suffix"], models=["model"] if "right" in answers[0] else [])
                    for number, text in enumerate(answers * 2):
                        noisy = machine if steady else replace(machine, **NOISE)
                        pace = 1.0 if steady else PACES[number % len(PACES)]
                        steps += spent(policy, text, noisy, seed=100 * seed + number, pace=pace) / pace
                        tokens += len(text["tokens"]) - text["prompt"] - 1
                found[name + ("" if steady else ", unsteady"), kind] = tokens / steps
    return found


@contextmanager
def without(constant: str) -> Iterator[None]:
    """Replace a constant by its neutral value, also where it was imported and where it is a default."""
    value = NEUTRAL[constant]
    names: dict[str, Any] = {constant: value}
    if constant == "PRIORS":
        names = {"_PRIORS": (0.5,) * len(acceptance.PRIORS)}
    undo: list[Any] = []
    for module in MODULES:
        for name, new in names.items():
            if hasattr(module, name):
                undo.append((module, name, getattr(module, name)))
                setattr(module, name, new)
        for function in _functions(module):
            for name, default in (function.__kwdefaults__ or {}).items():
                if (function.__qualname__, name, constant) in DEFAULTS:
                    undo.append((function.__kwdefaults__, name, default))
                    function.__kwdefaults__[name] = value
    cost_table._kernel.cache_clear()
    cost_table._prior.cache_clear()
    yield
    for place, name, old in undo:
        if isinstance(place, dict):
            place[name] = old
        else:
            setattr(place, name, old)
    cost_table._kernel.cache_clear()
    cost_table._prior.cache_clear()


DEFAULTS = {
    ("Recent.__init__", "most", "LATEST"),
    ("CostTable.is_due", "most", "MEASURE"),
    ("Ledger.doubt", "most", "MOST"),
}
"""Where a constant is the default of a parameter."""


def _functions(module: ModuleType) -> Iterator[Any]:
    for each in vars(module).values():
        if inspect.isclass(each) and each.__module__ == module.__name__:
            yield from (method for method in vars(each).values() if inspect.isfunction(method))


def main(names: Sequence[str]) -> None:
    texts = json.loads((Path(__file__).parent / "scheduler_texts.json").read_text(encoding="utf-8"))
    full = speeds(texts)
    for case, speed in full.items():
        print(f"{speed:6.3f}  {', '.join(case)}")
    _show("other noise", full, speeds(texts, seeds=(3, 4)))
    for constant in names or NEUTRAL:
        with without(constant):
            _show(constant, full, speeds(texts))


def _show(name: str, full: Mapping[Case, float], found: Mapping[Case, float]) -> None:
    """Print the mean loss of steady and of unsteady machines, and the largest loss."""
    losses = {case: 1 - speed / full[case] for case, speed in found.items()}
    means = (fmean(losses[case] for case in losses if case[0] in MACHINES), fmean(losses.values()))
    worst = max(losses, key=lambda case: losses[case])
    print(f"{name:16} {means[0]:7.2%} {means[1]:7.2%} {losses[worst]:7.2%} ({', '.join(worst)})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
