"""Run `eval --tasks`: answer tasks in several ways, judge the answers, keep them in a file, show the results."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from edgedecode import Pair, SamplingOptions, SessionOptions, load
from edgedecode.commands import print_json
from edgedecode.decoding.model import LanguageModel
from edgedecode.library.find import find_pack
from edgedecode.pack.integrity import models_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.plot_file import check_plot

from ..interrupts import leaving_at_once
from ..machine import Machine, engine_versions
from ..tasks.arms import Answered, answer_tasks
from ..tasks.code_sandbox import check_sandbox
from ..tasks.scoring import Judgement, judge, perplexity, reference_loss
from ..tasks.task_files import Kind, Task, read_tasks, tasks_digest
from ..terminal import progress, show_notices
from ..verb_options import given_sampling
from .accuracy import accuracies, accuracy_json
from .accuracy_tables import plot_accuracy, show_accuracy
from .answers_file import AnswersFile, Judged
from .arm_names import arm_list, checked_arms, default_arms

__all__ = ["run_tasks"]

TASK_TOKENS = 256
"""Most tokens of an answer where -n is not given."""


@dataclass(slots=True)
class TestedPack:
    """A pack and its arms by name. conditions: its engine, once it was opened."""

    path: str | None
    manifest: Manifest
    arms: dict[str, SessionOptions]
    label: str = ""
    conditions: str = ""


def run_tasks(arguments: Namespace) -> int:
    """Answer, judge and show; return the exit code."""
    if arguments.plot is not None:
        check_plot(Path(arguments.plot))
    tasks = read_tasks(*arguments.tasks, limit=arguments.limit)
    if any(task.kind is Kind.CODE for task in tasks):
        check_sandbox()
    max_tokens = arguments.max_tokens or TASK_TOKENS
    sampling = given_sampling(arguments, SamplingOptions(temperature=0.0))
    seed = None if sampling.temperature == 0 else arguments.seed or 0
    packs = _packs(arguments, sampling, seed=seed)
    names = [name for pack in packs for name in pack.arms]
    header = {
        "packs": {pack.label: models_digest(pack.manifest) for pack in packs},
        "arms": {name: repr(options) for pack in packs for name, options in pack.arms.items()},
        "tasks": tasks_digest(tasks),
        "max_tokens": max_tokens,
        "sampling": {**sampling.as_dict(), "logit_bias": dict(sampling.logit_bias)},
        "seed": seed,
        "runtime": (arguments.runtimes or ["auto"])[0],
        "kv_type": arguments.kv_type,
    }
    path = None if arguments.answers is None else Path(arguments.answers)
    expected = [(task.name, name) for name in names for task in tasks]
    perplexities: dict[str, float | None] = {}
    show_notices()
    with AnswersFile(path, header, resume=arguments.resume, expected=expected) as kept:
        try:
            with progress("answers", len(expected)) as advance:
                advance(len(kept.answers))
                for pack in packs:
                    _answer(pack, tasks, kept, arguments=arguments, max_tokens=max_tokens, advance=advance)
            if arguments.perplexity:
                for pack in packs:
                    perplexities |= _perplexities(pack, tasks, arguments)
        except KeyboardInterrupt:
            if path is not None:
                print(f"edgedecode: {len(kept.answers)} answers are in {path}: --resume continues", file=sys.stderr)
            raise
        arms = accuracies(kept.answers, tasks, names)
    how = "greedy" if seed is None else f"temperature {sampling.temperature:g}, seed {seed}"
    engines = "; ".join(pack.conditions for pack in packs if pack.conditions)
    conditions = f"{len(tasks)} tasks, at most {max_tokens} tokens, {how}{f'; {engines}' if engines else ''}"
    references = sum(bool(task.reference) for task in tasks)
    show_accuracy(arms, conditions=conditions, perplexities=perplexities, references=references)
    if arguments.plot is not None:
        plot_accuracy(arms, Path(arguments.plot), conditions=conditions)
    if arguments.json:
        value = {
            **header,
            "arms": {arm.name: accuracy_json(arm, arms[0]) for arm in arms},
            "tasks": {"files": list(arguments.tasks), "count": len(tasks), "digest": header["tasks"]},
            "engines": {pack.label: pack.conditions for pack in packs},
            "perplexity": perplexities,
            "machine": asdict(Machine.here()),
            "answers": arguments.answers,
        }
        print_json(value)
    return 0


def _packs(arguments: Namespace, sampling: SamplingOptions, *, seed: int | None) -> list[TestedPack]:
    """Return the packs with their arms: those of --arms, and the target of each pack to compare with."""
    manifest = Manifest.load(find_pack(arguments.model))
    arms = checked_arms(arguments.arms or default_arms(manifest), manifest, adapter=arguments.adapter)
    packs = [TestedPack(arguments.model, manifest, {arm.name: arm.options(sampling, seed=seed) for arm in arms})]
    packs[0].label = manifest.name
    taken = set(packs[0].arms)
    (target,) = arm_list("target")
    for other in arguments.compare_with or []:
        root = find_pack(other)
        name = label = root.resolve().name
        number = 1
        while name in taken:
            number += 1
            name = f"{label}-{number}"
        taken.add(name)
        packs.append(TestedPack(other, Manifest.load(root), {name: target.options(sampling, seed=seed)}, name))
    return packs


def _answer(
    pack: TestedPack,
    tasks: Sequence[Task],
    kept: AnswersFile,
    *,
    arguments: Namespace,
    max_tokens: int,
    advance: Callable[..., None],
) -> None:
    """Answer what is missing of a pack's arms, and judge it."""
    done = kept.done
    if all((task.name, arm) in done for task in tasks for arm in pack.arms):
        return
    by_name = {task.name: task for task in tasks}
    with _opened(pack, arguments) as pair:
        for answer in answer_tasks(pair, tasks, pack.arms, max_tokens=max_tokens, done=done):
            kept.add(_judged(answer, by_name[answer.task]))
            advance()


def _judged(answer: Answered, task: Task) -> Judged:
    found = judge(task, answer.text)
    if not answer.complete:
        wrong = None if found.correct is None else False
        found = Judgement(wrong, "the conversation exceeds the context")
    return Judged(**asdict(answer), family=task.family, correct=found.correct, reason=found.reason)


@contextmanager
def _opened(pack: TestedPack, arguments: Namespace) -> Iterator[Pair]:
    """Open a pack on the engine of the arguments, and note its conditions."""
    with leaving_at_once():
        pair = load(
            pack.path,
            memory=arguments.memory,
            runtime=None if arguments.runtimes is None else arguments.runtimes[0],
            threads=arguments.threads,
            verify=arguments.verify,
            kv_type=arguments.kv_type,
            adapters=any(options.adapter is not None for options in pack.arms.values()),
        )
    with pair:
        pack.conditions = f"{pack.label} on {engine_versions(pair.runtime)}"
        yield pair


def _perplexities(pack: TestedPack, tasks: Sequence[Task], arguments: Namespace) -> Mapping[str, float | None]:
    """Return the perplexity of the references under the pack's models, without adapters."""
    found = {}
    with _opened(pack, arguments) as pair:
        models: dict[str, LanguageModel | None] = {"target": pair.target}
        if "draft" in pack.manifest.models and any(options.switch for options in pack.arms.values()):
            models["draft"] = pair.draft
        for role, model in models.items():
            assert model is not None
            with progress(f"perplexity, {role}", len(tasks)) as advance:
                losses = []
                for task in tasks:
                    if (loss := reference_loss(model, pair.tokenizer, task)) is not None:
                        losses.append(loss)
                    advance()
            found[f"{pack.label} {role}"] = perplexity(losses)
    return found
