"""Trains a head or a draft model in one folder: texts, labels, training, and the result; each goes on where it was.

Sources: EAGLE-3 (2503.01840) for the head and its unrolled steps; FastDraft (2411.11055) for text of the target's.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from edgedecode import load
from edgedecode.adapters.pack_adapters import PackAdapters
from edgedecode.engines.interface import ADAPTERS, ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import CapabilityError, ExportError, InputError
from edgedecode.fair_lock import FairLock
from edgedecode.locks import Lock, take_lock
from edgedecode.memory.budget import Budget
from edgedecode.memory.pressure import free_memory
from edgedecode.memory.process_memory import resident_nbytes
from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.entries import FileEntry, OutsideFile
from edgedecode.pack.gate import check_pack
from edgedecode.text.printable import counted
from edgedecode.text.prompts import read_prompts
from edgedecode.user_notices import notice

from ..gguf.maker import GgufMaker
from ..stages import Stages
from .acceptance import Acceptance, Trend, measure, together
from .adding import pack_copy
from .batches import Batches
from .kinds.draft_kind import DraftKind
from .kinds.head_folder import WEIGHTS
from .kinds.head_kind import HeadKind
from .kinds.kind import TRIAL, Kind, Started
from .labels import Labels, labelled, use_only, write_labels
from .plan import DistilPlan, distil_plan
from .speed import TIMED_TEXTS, TOKENS, Best, RoundCosts, round_costs
from .target_weights import TargetWeights
from .texts import (
    CONTEXT,
    HELD_OUT,
    TOGETHER,
    Text,
    bundled_prompts,
    read_texts,
    short_enough,
    without_shared,
    write_texts,
)
from .training import Training

EPOCHS, MOST_EPOCHS = 8, 16
"""Times that each text is read, and at most where minutes decide."""
WRITING_SHARE, READING_SHARE, TRAINING_SHARE = 0.4, 0.8, 0.9
"""Of the minutes, when each ends at the latest. The training reads ten times as many tokens a second as are written; in
what is left it is measured, and the speeds before and after."""
_LEAST_MEASURED, _ANSWERS = 8, 4
"""Held-out texts by which speeds are compared at least, and the answers to each."""
_MARGIN = 1.25
"""Of what is planned from the first texts: the next ones may be written faster, or be longer."""
REPORT_SECONDS = 300.0
_LEAST_TEXT = 2.0
"""Tokens of texts for each of their answers that are planned: the first prompts may be shorter than later ones."""
_TARGET_COPIES = 2
"""Of the target's weights, in the memory that it takes."""
_MOST_HELD_OUT = 64
"""Prompts of given answers."""
_TIMED_BATCHES = 7
"""Batches by whose median time the number of steps is decided: the first take longer."""
_KINDS: Mapping[str, Callable[[Path, Path | None], Kind]] = {"head": HeadKind, "draft": DraftKind}
_TEXTS, _LABELS, _TRAINING, _OPTIONS = "texts.jsonl", "labels.bin", "training.pt", "distil.json"


@dataclass(frozen=True, slots=True)
class DistilRequest:
    """minutes, tokens: of the whole work, or of the answers that are written; one of them is None."""

    root: Path
    out: Path
    kind: str = "head"
    minutes: float | None = None
    tokens: int | None = None
    prompts: Path | None = None
    answers: Path | None = None
    init: Path | None = None
    adapter: str | None = None
    """The target's, that answers and labels are written with."""
    resume: bool = False

    def options(self) -> dict[str, object]:
        """Return what a resumed work must have in common with the one that it goes on with, files by their content."""
        files = {"prompts": self.prompts, "answers": self.answers, "init": self.init and self.init / WEIGHTS}
        digests = {name: None if path is None else _digest(path) for name, path in files.items()}
        return {"kind": self.kind, **digests, "minutes": self.minutes, "tokens": self.tokens}


@dataclass(frozen=True, slots=True)
class Progress:
    """A measurement on the held-out texts."""

    seconds: float
    tokens: int
    """Read by the training so far."""
    kinds: dict[str, Acceptance]
    speed_up: float
    """Predicted from the costs of rounds here, without other drafters."""
    trend: Trend | None
    hourly: int
    """Tokens that the training reads in an hour."""

    @property
    def total(self) -> Acceptance:
        return together(self.kinds)


class Distillation:
    """The work in one folder, which is locked until its `with` ends.

    planned: is told what it will take. report: of each measurement.

    Raises ExportError for a target that none can be for, InputError for a folder that is not empty, that holds no
    such work, or in which another process works.
    """

    def __init__(
        self,
        request: DistilRequest,
        stages: Stages,
        *,
        planned: Callable[[DistilPlan], None] = lambda plan: None,
        report: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._request, self._stages, self._planned, self._report = request, stages, planned, report
        self._manifest = check_pack(request.root)
        self._entry = self._manifest.located("target")
        self._adapter = None if request.adapter is None else self._manifest.located_adapter(request.adapter)
        self.kind = _KINDS[request.kind](request.root, request.init)
        self.best: Best | None = None
        """Of what was written, when `run` has returned."""
        self._started, self._minutes = monotonic(), request.minutes or inf
        self._lock = self._begin()

    def __enter__(self) -> "Distillation":
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def run(self) -> list[Text]:
        """Write the result into the folder, and return the held-out texts. What is done is kept if it stops."""
        out, width = self._request.out, len(self.kind.taps) * self._entry.hidden_size
        with self._target_file() as path:
            target = TargetWeights(path)
            texts = self._texts(out / _TEXTS, target)
            if dropped := len(texts) - len(texts := without_shared(texts)):
                notice(f"{counted(dropped, 'text')} left out, whose prompts are held out")
            texts = self._label(out / _LABELS, texts, width=width)
            held_out = [text for text in texts if text.held_out]
            if min(len(held_out), len(texts) - len(held_out)) < 1:
                raise InputError(f"{len(texts)} answers are too few to train on: at least {2 * HELD_OUT} are needed")
            costs = self._train(Labels.open(out / _LABELS, texts, width=width), target)
        if self._minutes == inf:
            return held_out
        most = int(60 * self._minutes * (1 - TRAINING_SHARE) / (_ANSWERS * TOKENS * costs.seconds))
        return held_out[:: ceil(len(held_out) / max(_LEAST_MEASURED, most))]

    def _until(self, share: float) -> float:
        """Return when this share of the minutes is over, by `monotonic`."""
        return self._started + 60 * share * self._minutes

    def _begin(self) -> Lock:
        """Make the folder, or check that it holds such a work. Return its lock."""
        out, options = self._request.out, {"target": self._weights.sha256, **self._request.options()}
        options["adapter"] = self._adapter and _digest(self._request.root / self._adapter.file)
        path = out / _OPTIONS
        if self._request.resume:
            try:
                known = dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError, RecursionError):
                raise InputError(f"{out} holds no work to go on with: leave out --resume") from None
            if others := [name for name, value in options.items() if known.get(name) != value]:
                other = "target" if others[0] == "target" else f"--{others[0]}"
                raise InputError(f"the work in {out} was begun with another {other}: give the same, or another --out")
            return _locked(out)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: name a folder with --out")
        if out.exists() and any(path.name != _OPTIONS for path in out.iterdir()):
            raise InputError(f"{out} is not empty: --resume goes on with the work in it, --out names another folder")
        out.mkdir(parents=True, exist_ok=True)
        lock = _locked(out)
        path.write_text(json.dumps(options), encoding="utf-8")
        return lock

    def _texts(self, path: Path, target: TargetWeights) -> list[Text]:
        """Return the texts, written or given."""
        size, request = self._manifest.vocabulary_size, self._request
        if request.answers is not None:
            texts = _held_out(read_texts(request.answers, vocabulary_size=size))
            self._plan(target, *_sizes(texts))
            return texts
        known = read_texts(path, vocabulary_size=size) if path.exists() else []
        if (self._request.out / _TRAINING).exists():
            return known
        prompts = bundled_prompts() if request.prompts is None else read_prompts(request.prompts, family="")
        wanted, until = request.tokens, self._until(WRITING_SHARE)
        stage = self._stages.stage("writing answers", wanted or int(until - self._started))
        with load(request.root, adapters=self._adapter is not None) as pair, stage as step:
            (before, _), began = _sizes(known), monotonic()
            first = len(known) + TOGETHER  # texts that are written together: one alone has no time of its own
            read, answers, positions, shown, tokens, most = 0, 0, 0, 0, wanted or 0, inf

            def advance(text: Text) -> bool:
                nonlocal read, answers, positions, shown, tokens, most
                read, answers, positions = read + 1, answers + len(text.answer), positions + len(text.tokens)
                now = monotonic()
                if read == first or (wanted and positions >= most):
                    rate, left = (answers - before) / max(1e-9, now - began), max(0.0, until - now)
                    tokens = wanted or answers + int(_MARGIN * rate * left)
                    each = max(_LEAST_TEXT, positions / max(1, answers) * (_MARGIN if wanted else 1))
                    most = positions + max(0, tokens - answers) * each
                    self._plan(target, tokens, int(most) + CONTEXT)  # the last text is written to its end
                done = answers if wanted else int(now - self._started)
                step(done - shown)
                shown = done
                if wanted:
                    return answers < wanted
                return read < first or (now < until and positions < most and answers < tokens)

            write_texts(pair, short_enough(pair, prompts), path, advance=advance, adapter=request.adapter)
            if most == inf:
                self._plan(target, answers, positions)
        return read_texts(path, vocabulary_size=size)

    def _plan(self, target: TargetWeights, tokens: int, positions: int) -> None:
        """Tell what the work will take. Raises ExportError if memory or disk is too small for it. As `distil_plan`."""
        weights = self._weights.nbytes
        sizes = {"target_nbytes": _TARGET_COPIES * weights, "made_nbytes": 0 if self._entry.gguf else weights}
        needs, rows = self.kind.needs(target), target.rows
        plan = distil_plan(needs, vocabulary_size=rows, tokens=tokens, positions=positions, **sizes)
        self._planned(plan)
        out = self._request.out
        there = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        if (free := shutil.disk_usage(out).free + there) < plan.disk_nbytes:
            raise ExportError(
                f"the work takes {format_nbytes(plan.disk_nbytes)} of disk, {out} has {format_nbytes(free)} for it: "
                f"make room, or ask for less (--tokens)"
            )
        available = free_memory()
        if available and (memory := available.nbytes + (resident_nbytes() or 0)) < plan.memory_nbytes:
            raise ExportError(
                f"the work takes {format_nbytes(plan.memory_nbytes)} of memory, {format_nbytes(memory)} are free: "
                f"end other programs, or name a smaller model"
            )

    @property
    def _weights(self) -> FileEntry | OutsideFile:
        name = self._manifest.models["target"].weights
        return self._manifest.outside.get(name) or self._manifest.files[name]

    def _label(self, path: Path, texts: list[Text], *, width: int) -> list[Text]:
        """Write the labels that the file lacks. Return the texts that have labels."""
        done, wanted = labelled(path, texts, width=width, is_trained=(self._request.out / _TRAINING).exists())
        root, name, size, budget = self._request.root, "target", self._manifest.vocabulary_size, Budget()
        needs = () if self._adapter is None else (ADAPTERS,)
        request = ModelRequest(self._entry, root, name, size, budget, needs=needs, taps=self.kind.taps)
        model = find_runtime("onnx").open(request)
        adapters = PackAdapters(self._manifest, root, model=model, budget=budget, turn=FairLock())
        left, until = texts[done:wanted], self._until(READING_SHARE)
        with self._stages.stage("reading answers", sum(len(text.tokens) for text in left)) as step:

            def advance(count: int) -> bool:
                step(count)
                return monotonic() < until

            adapter = adapters.choice().choose(self._request.adapter)
            done += write_labels(model, left, path, width=width, adapter=adapter, advance=advance)
        if done < wanted:
            use_only(path, done)
            notice(f"{counted(wanted - done, 'text')} left out, as the minutes do not suffice to read them")
        return texts[:done]

    @contextmanager
    def _target_file(self) -> Iterator[Path]:
        """Yield the target's GGUF file; one that is made for it is removed again."""
        entry, root = self._entry, self._request.root
        if entry.gguf:
            yield root / entry.gguf
            return
        if not entry.gguf_plan:
            raise CapabilityError("the pack has no GGUF file of its target: export it with gguf among the --formats")
        made = self._request.out / "target.gguf"
        try:
            GgufMaker().make(entry, root, made)
            yield made
        finally:
            made.unlink(missing_ok=True)

    def _train(self, labels: Labels, target: TargetWeights) -> RoundCosts:
        checkpoint, texts = self._request.out / _TRAINING, labels.texts
        held = {index: text.kind for index, text in enumerate(texts) if text.held_out}
        trained = [index for index in range(len(texts)) if index not in held]
        started = self.kind.start(target, [texts[index] for index in trained])
        costs = self._round_costs(started, [texts[index] for index in held])
        network, table = started.network, started.table
        batches = Batches(labels, started.ids, vocabulary_size=target.rows)
        training = Training(network, table, batches, trained)
        if checkpoint.exists():
            training.load(checkpoint)
        else:
            epoch = batches.epoch(trained, seed=0)
            training.plan(epoch[:_TIMED_BATCHES])
            training.steps = (EPOCHS if self._minutes == inf else MOST_EPOCHS) * len(epoch)
            training.steps = max(1, training.steps_in(self._until(TRAINING_SHARE) - monotonic()))
            training.save(checkpoint)
        left = training.seconds_of(training.steps)
        notice(f"the training takes {counted(training.steps - training.done, 'step')}, about {left / 60:.0f} minutes")
        in_step = sum(len(texts[index].tokens) for index in trained) / len(batches.epoch(trained, seed=0))
        begun, before = monotonic(), training.done

        def note() -> None:
            kinds = measure(network, table, batches, held)
            total, read = together(kinds), int(in_step * training.done)
            length = total.length()
            if training.depth == network.depth and (read, length) not in training.measured:
                training.measured.append((read, length))
            if length > Acceptance(**training.best_counts).length() or not (self._request.out / WEIGHTS).exists():
                training.best_tokens, training.best_counts = read, asdict(total)
                self.kind.write(self._request.out, started)
            training.save(checkpoint)
            hourly = int(3600 * in_step * (training.done - before) / (monotonic() - begun))
            trend, speed = Trend.of(training.measured), costs.speed_up(total)
            self._report(Progress(monotonic() - self._started, read, kinds, speed, trend, hourly))

        with self._stages.stage("training", training.steps) as step:
            step(training.done)
            last = monotonic()
            try:
                for _ in training.run(until=self._until(TRAINING_SHARE)):
                    step(1)
                    if monotonic() - last > REPORT_SECONDS and training.done < training.steps:
                        note()
                        last = monotonic()
            except (KeyboardInterrupt, SystemExit):
                training.save(checkpoint)
                raise
        note()
        counts = Acceptance(**training.best_counts)
        self.best = Best(training.best_tokens, counts, costs.speed_up(counts))
        return costs

    def _round_costs(self, started: Started, texts: Sequence[Text]) -> RoundCosts:
        """Time rounds of a copy of the pack, with what is to be trained: its rounds take nearly the same afterwards."""
        root, out, adapter = self._request.root, self._request.out, self._request.adapter
        with pack_copy(root, out) as trial, TemporaryDirectory(prefix=TRIAL, dir=out) as place:
            self.kind.write(Path(place), started)
            self.kind.add(trial, Path(place), self._stages)
            with self._stages.stage("timing rounds", min(TIMED_TEXTS, len(texts))) as advance:
                drafter, minutes = self.kind.drafter, self._minutes
                return round_costs(trial, texts, drafter=drafter, adapter=adapter, minutes=minutes, advance=advance)


def _sizes(texts: Sequence[Text]) -> tuple[int, int]:
    """Return the tokens of the answers, and of the texts."""
    return sum(len(text.answer) for text in texts), sum(len(text.tokens) for text in texts)


def _held_out(texts: Sequence[Text]) -> list[Text]:
    """Return the texts; if none is held out, those of some prompts are."""
    if any(text.held_out for text in texts):
        return list(texts)
    prompts = sorted({text.prompt for text in texts})
    kept = set(prompts[:: max(HELD_OUT, len(prompts) // _MOST_HELD_OUT)])
    return [replace(text, held_out=text.prompt in kept) for text in texts]


def _locked(out: Path) -> Lock:
    try:
        lock = take_lock(out)
    except OSError:  # a file system without locks
        return Lock(-1)
    if lock is None:
        raise InputError(f"another process works in {out}: wait for it, or name another --out")
    return lock


def _digest(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
