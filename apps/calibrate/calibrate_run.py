"""Run a calibration: choose a signal and thresholds, measure the curve, check it on other prompts, show and save it."""

import hashlib
import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from edgedecode import InputError, Pair, SamplingOptions, SessionDetails, SessionOptions, SwitchOptions
from edgedecode.commands import print_json
from edgedecode.drafters.source import ADD_DRAFT
from edgedecode.errors import CapabilityError
from edgedecode.library.find import find_pack
from edgedecode.options import DEFAULT_QUALITY
from edgedecode.pack.entries import SwitchCurve, SwitchPoint
from edgedecode.pack.integrity import models_digest
from edgedecode.switching.rule import SwitchRule
from edgedecode.text.messages import Message
from edgedecode.text.printable import counted

from ..machine import engine_versions
from ..manifest_results import save_result, saves_result
from ..terminal import progress, table_console, tracked
from ..verb_options import open_pair
from .arms import DRAFT, DRAFT_ALONE, SPECULATION, TARGET, ArmResult, measure_arms, point_of, quality_low
from .task_files import Task, read_tasks
from .text_signals import AnswerSignals, answer_signals, best_signal, joined, thresholds

LEAST = 20
"""Fewest questions of each half: with fewer, an interval says nothing."""
POINTS = 10
"""Thresholds that are measured."""
GREEDY = SamplingOptions(temperature=0.0)
PLAIN = SessionOptions(sampling=GREEDY, drafter="none")


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A curve, the arms it was measured with, and arms on the held-out questions."""

    curve: SwitchCurve
    arms: Mapping[str, ArmResult]
    held_out: Mapping[str, ArmResult]
    chosen: SwitchPoint | None
    """The point of the default quality; None: no threshold keeps it."""


def run_calibration(arguments: Namespace) -> int:
    """Calibrate, print the tables, save the curve; return the exit code."""
    tasks = read_tasks(Path(arguments.prompts), limit=arguments.limit)
    root = find_pack(arguments.model, arguments.draft)
    with open_pair(arguments) as pair:
        if "draft" not in pair.manifest.models:
            raise CapabilityError(f"there is no draft model to switch to: {ADD_DRAFT}")
        found = calibrated(pair, tasks, arguments)
        name = pair.manifest.name
    signal = found.curve.signal
    show_arms(f"{name}: {found.curve.prompts} prompts, switching by {signal}", found.arms, signal=signal)
    show_arms(f"{len(found.held_out[TARGET].correct)} held-out prompts", found.held_out, signal=signal)
    saves = saves_result(root, arguments.save)
    if saves:
        save_result(root, lambda manifest: manifest.update(switching=asdict(found.curve)))
    print(verdict(found.chosen, found.held_out, place=f"{root}'s manifest" if saves else None))
    if arguments.json:
        print_json(_as_dict(found, root, saves=saves))
    return 0


def calibrated(pair: Pair, tasks: Sequence[Task], arguments: Namespace) -> Calibrated:
    """Measure the curve on one half of the questions, and the chosen threshold with its peers on the other.

    Raises InputError for too few or too long questions, or if the target answers none of them correctly.
    """
    if len(tasks) < 2 * LEAST:
        raise InputError(f"{counted(len(tasks), 'prompt')} cannot calibrate: give at least {2 * LEAST}")
    _check_lengths(pair, tasks)
    choosing, held_out = halves(tasks)
    limit = arguments.max_tokens
    found = _signals(pair, choosing, max_tokens=limit)
    signal = best_signal(found)
    ups = thresholds(found.values[signal], POINTS)
    ways = {
        TARGET: PLAIN,
        SPECULATION: SessionOptions(sampling=GREEDY),
        DRAFT: SessionOptions(sampling=GREEDY, details=SessionDetails(switch=DRAFT_ALONE)),
    }
    arms = ways | {f"{up:.4g}": _switched(SwitchRule(up=up, signal=signal)) for up in ups}
    with progress("curve", len(arms) * len(choosing)) as advance:
        results = measure_arms(pair, choosing, arms, max_tokens=limit, advance=advance)
    target = results[TARGET]
    if not any(target.correct):
        raise InputError("the target answers none of these prompts correctly: give prompts that it can answer")
    texts = [[*((message.role, message.content) for message in task.history), *task.turns] for task in choosing]
    curve = SwitchCurve(
        signal=signal,
        points=tuple(point_of(up, results[f"{up:.4g}"], target) for up in ups),
        prompts=len(choosing),
        prompts_digest=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        target_accuracy=target.accuracy,
        draft_accuracy=results[DRAFT].accuracy,
        engine=f"{pair.runtime}: {engine_versions(pair.runtime)}",
        models=models_digest(pair.manifest),
        tokens=target.tokens,
    )
    chosen = curve.threshold(DEFAULT_QUALITY)
    peers = dict(ways)
    if chosen is not None:
        peers["switch"] = _switched(SwitchRule(up=chosen.up, signal=signal))
    with progress("held-out prompts", len(peers) * len(held_out)) as advance:
        checked = measure_arms(pair, held_out, peers, max_tokens=limit, advance=advance)
    return Calibrated(curve, results, checked, chosen)


def halves(tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Divide the tasks of every family into two halves, whose sizes differ by one at most."""
    parts: tuple[list[Task], list[Task]] = ([], [])
    seen: dict[str, int] = {}
    for task in tasks:
        count = seen.setdefault(task.family, len(seen))  # of odd families, in turn, the first or second half has more
        parts[count % 2].append(task)
        seen[task.family] += 1
    return parts


def _check_lengths(pair: Pair, tasks: Sequence[Task]) -> None:
    """Raise InputError for a question that leaves no room for an answer."""
    with pair.session(PLAIN) as session:
        context = session.context
    for task in tasks:
        turn = Message("user", task.turns[0])
        count = len(pair.tokenizer.encode(pair.tokenizer.render([*task.history, turn])))
        if count >= context:
            raise InputError(f"{task.name} has {count} tokens, the context holds {context}: leave it out")


def _signals(pair: Pair, tasks: Sequence[Task], *, max_tokens: int) -> AnswerSignals:
    """Return the draft model's signals on the target's answers."""
    parts, row_draw, draft = [], pair.shared.row_draw(), pair.draft
    assert draft is not None
    for task in tracked(tasks, "signals"):
        with pair.session(PLAIN, messages=task.history) as session:
            answer = session.generate(task.turns[0], max_tokens=max_tokens).tokens
            prompt = session.tokens[: session.stats.prompt_tokens]
        size = pair.tokenizer.size
        parts.append(answer_signals(draft, prompt, answer, vocabulary_size=size, row_draw=row_draw))
    return joined(parts)


def _switched(rule: SwitchRule) -> SessionOptions:
    return SessionOptions(sampling=GREEDY, details=SessionDetails(switch=SwitchOptions(rule=rule)))


def _as_dict(found: Calibrated, root: Path, *, saves: bool) -> dict[str, object]:
    def figures(arms: Mapping[str, ArmResult]) -> dict[str, object]:
        return {
            name: {
                "accuracy": arm.accuracy,
                "target_share": arm.target_share,
                "tokens_per_second": arm.speed,
                "tokens": arm.tokens,
                "quality_low": quality_low(arm.correct, arms[TARGET].correct),
            }
            for name, arm in arms.items()
        }

    return {
        "pack": str(root),
        "saved": saves,
        "curve": asdict(found.curve),
        "chosen": None if found.chosen is None else asdict(found.chosen),
        "calibration": figures(found.arms),
        "held_out": figures(found.held_out),
    }


def show_arms(title: str, arms: Mapping[str, ArmResult], *, signal: str) -> None:
    """Print a line for each arm; those of a threshold have its number as their name."""
    table = Table(title=title)
    for column in ("answers by", "accuracy", "of the target's", "at least", "target's tokens", "speed"):
        table.add_column(column, justify="left" if column == "answers by" else "right")
    target = arms[TARGET]
    for arm, found in arms.items():
        label = f"{signal} ≥ {arm}" if arm[0].isdigit() else arm
        quality = _quality(found, target) or ("", "")
        share, speed = f"{found.target_share:.0%}", f"{found.speed / target.speed:.2f}"
        table.add_row(label, f"{found.accuracy:.1%}", *quality, share, speed)
    table_console().print(table)


def verdict(chosen: SwitchPoint | None, held_out: Mapping[str, ArmResult], *, place: str | None) -> str:
    """Return what a user can act on. place: where the curve was saved, if it was."""
    saved = f" Saved in {place}." if place else " Not saved: give --save to keep the curve in the pack."
    if chosen is None:
        kept = f"{DEFAULT_QUALITY:.0%} of the target's accuracy"
        return f"No measured threshold keeps {kept}: leave out --mode switch.{saved}"
    switch, speculation, target = (held_out[name] for name in ("switch", SPECULATION, TARGET))
    kept, least = _quality(switch, target) or ("an unknown share", "unknown: the target answers no held-out prompt")
    line = (
        f"--mode switch keeps {kept} of the target's accuracy (at least {least}) with {switch.target_share:.0%} of its "
        f"tokens, at {switch.speed / target.speed:.2f} of its speed."
    )
    if speculation.speed >= switch.speed:
        line += (
            f" Verified speculation is faster here, {speculation.speed / target.speed:.2f}, and loses nothing: prefer "
            f"it (--mode verify, the default)."
        )
    else:
        line += f" Verified speculation runs at {speculation.speed / target.speed:.2f} and loses nothing."
    return line + saved


def _quality(found: ArmResult, target: ArmResult) -> tuple[str, str] | None:
    """Return the accuracy relative to the target's, and its lower bound; None if the target's is 0."""
    if not target.accuracy:
        return None
    return f"{found.accuracy / target.accuracy:.1%}", f"{quality_low(found.correct, target.correct):.1%}"
