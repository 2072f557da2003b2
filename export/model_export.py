"""Exports one role's model: builds its graphs, writes its weights, checks them and returns its manifest entry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import KernelNoise
from edgedecode.engines.text_scores import ScoredText
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ARCHITECTURES, HYBRIDS
from edgedecode.gguf.importance import write_sums
from edgedecode.library.facts import not_on_kernels
from edgedecode.pack.entries import ActivationsEntry
from edgedecode.pack.manifest import ModelEntry

from .checks.model_checks import check_file, check_noise, check_parity, opened
from .checks.reference import Reference
from .gguf.importance_file import sums_of
from .gguf.model_file import GGUF_FILE, FileDrawing, GgufFile, check_gguf_network
from .gguf.network_tensors import rounded_weights
from .gguf.row_source import StoredRows
from .graph.checkpoint import Checkpoint
from .graph.drawing import EXACT_FILE, GRAPH_FILE, WEIGHTS_FILE, Drawing, draw, graph_entry, write_exact
from .graph.error_feedback import Moments
from .graph.network import Windows, find_windows, open_network
from .graph.passes.stored_weights import set_activations
from .graph.variants import VariantJob
from .imports.gguf_import import file_entry
from .imports.gguf_source import open_gguf_source
from .job import ModelJob
from .kept_steps import KeptSteps
from .recipes.activation_choice import TOKENS as CHOICE_TOKENS
from .recipes.activation_choice import choose_activations, opened_wide
from .recipes.activation_errors import some_of
from .recipes.calibration import TOKENS, Tokens, find_moments, sample_texts
from .recipes.loss import measure_loss
from .recipes.matrix_choice import TOKENS as WIDTH_TOKENS
from .recipes.matrix_choice import choose_matrices, expected_changes, find_gradients, matrix_sizes
from .stages import Stages

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)
PLAN_FILE = "gguf.json"
_WITHOUT_TEXT = "give one with --calibrate-text, or --no-calibrated"


def export_model(job: ModelJob, weights: Sequence[Path], *, pack: Path, steps: KeptSteps, stages: Stages) -> ModelEntry:
    """Export `job` from the files `weights` into the role's folder of `pack`, and check the result.

    steps: what is kept of an earlier run. Raises ExportError when a check fails.
    """
    (pack / job.role).mkdir()
    with closing(Checkpoint(weights)) as checkpoint:
        entry = _checked(job, checkpoint, pack=pack, steps=steps, stages=stages)
    if positions := job.texts.noise_positions:

        def measured_noise() -> KernelNoise:
            with stages.stage(f"{job.role}: kernel noise", positions) as advance:
                return check_noise(entry, pack, texts=job.texts, progress=advance)

        noise = steps.value(f"noise over {positions}", KernelNoise, measured_noise)
        measured = {"noise_largest": noise.largest, "noise_positions": float(noise.positions)}
        entry = replace(entry, kernel_noise=noise.percentile, parity={**entry.parity, **measured})
    return entry


def _checked(job: ModelJob, checkpoint: Checkpoint, *, pack: Path, steps: KeptSteps, stages: Stages) -> ModelEntry:
    """Write weights and graphs, and check them: everything that needs the checkpoint."""
    with stages.stage(f"{job.role}: structure"):
        network = _network(job, checkpoint)
        if job.gguf is not None and not job.gguf.planned:
            check_gguf_network(job.source, network)
        windows = find_windows(network, context=job.context)
        recipe = job.recipe.among(matrix_sizes(network), layers=job.source.shape.layers)
        job = replace(job, recipe=recipe)
        drawing = _drawing(job, network, windows=windows)
    reference = Reference(network, job.recipe, release=checkpoint.release, windows=windows)
    work = _ModelSteps(job, pack, checkpoint, stages, drawing)
    if isinstance(drawing, FileDrawing):
        return _file_only(work, reference, steps, windows=windows)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    entry = _entry(job, drawing, parameters=parameters, window=windows.size)
    entry = replace(entry, notes=(*entry.notes, *_left_out(checkpoint)))
    work = _written(work, lambda place: entry, reference, steps, windows=windows)
    job, drawing = work.job, work.graph
    entry, reference = replace(entry, quantization=job.recipe.remark), work.rounded(reference)
    text: Tokens = ()
    if job.recipe.quantized:
        text = steps.value("text", list[list[int]], lambda: work.own_text(entry))
    if job.activations != "8" and job.recipe.quantized:
        chosen = steps.value("activations", ActivationsEntry, lambda: work.chosen(entry, reference, text))
        set_activations(drawing.model, chosen.wide)
        entry = replace(entry, activations=chosen)
    drawing.write_graph(work.folder)
    entry = work.with_variants(work.checked(entry, reference, text), reference)
    return work.with_gguf(entry, reference, windows=windows)


def _file_only(work: _ModelSteps, reference: Reference, steps: KeptSteps, *, windows: Windows) -> ModelEntry:
    """Write and check a GGUF file, which is all that a pack has of a model whose graph no builder draws."""
    role, origin = work.job.role, work.job.source.origin

    def made(pack: Path) -> ModelEntry:
        source = open_gguf_source(pack / role / GGUF_FILE)
        return replace(file_entry(source, f"{role}/{GGUF_FILE}", license=work.job.license), source=origin)

    work = _written(work, made, reference, steps, windows=windows)
    assert isinstance(work.drawing, FileDrawing)
    elements = sum(each.numel() for each in reference.network.parameters())
    with work.stages.stage(f"{role}: gguf", elements) as advance:
        reading = work.drawing.write_graph(work.folder, progress=advance, release=work.checkpoint.release)
    entry = made(work.pack)
    notes = (*work.job.notes, *_left_out(work.checkpoint), *reading.notes)
    quantization = work.job.recipe.remark or entry.quantization
    entry = replace(entry, notes=notes, parity=reading.measured, quantization=quantization)
    if note := not_on_kernels(entry, work.pack):
        entry = replace(entry, notes=(*entry.notes, f"its results were not checked: {note}"))
    else:
        entry = work.file_checked(entry, work.rounded(reference), steps)
    (work.folder / WEIGHTS_FILE).unlink()
    return entry


def _left_out(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return a note on the parts of a checkpoint that are not used, if there are any."""
    others = ", ".join(sorted(checkpoint.left_out))
    return (f"text only: left out are {others}",) if others else ()


def _written(
    work: _ModelSteps,
    entry_in: Callable[[Path], ModelEntry],
    reference: Reference,
    steps: KeptSteps,
    *,
    windows: Windows,
) -> _ModelSteps:
    """Write the weights; return the steps for them, whose job has the matrices with 8 bits if these are measured.

    entry_in: returns the entry of the model as written to a folder.
    """
    calibration = _Calibration(work, entry_in, reference)
    if (job := work.job).measured_widths:
        chosen = steps.value("widths", list[str], calibration.matrices)
        job = replace(job, recipe=replace(job.recipe, matrices=tuple(chosen)))
        work = replace(work, job=job, drawing=_drawing(job, reference.network, windows=windows))
    if job.importance_out is None:
        steps.file(work.folder / WEIGHTS_FILE, lambda: work.write_weights(calibration))
    else:  # kept weights would leave the importance unmeasured
        work.write_weights(calibration)
    return work


@dataclass(frozen=True, slots=True)
class _ModelSteps:
    """The steps that need the checkpoint, and their common inputs."""

    job: ModelJob
    pack: Path
    checkpoint: Checkpoint
    stages: Stages
    drawing: Drawing | FileDrawing

    @property
    def folder(self) -> Path:
        return self.pack / self.job.role

    @property
    def graph(self) -> Drawing:
        assert isinstance(self.drawing, Drawing)
        return self.drawing

    def rounded(self, reference: Reference) -> Reference:
        """Return a reference with the weights as written."""
        reference = reference.rounding(self.job.recipe)
        if not self.job.recipe.calibrated:
            return reference
        return reference.reading(StoredRows(self.drawing.weights, self.folder / WEIGHTS_FILE))

    def write_weights(self, calibration: _Calibration) -> None:
        """Write the weights, calibrated if the recipe asks for that."""
        weights = self.drawing.weights
        if self.job.importance is not None:
            weights.calibrate(self.job.importance.columns)
        elif self.job.recipe.calibrated:
            weights.calibrate(calibration.moments)
        with self.stages.stage(f"{self.job.role}: weights", weights.elements) as advance:
            self.drawing.write_weights(self.folder, progress=advance, release=self.checkpoint.release)
        weights.calibrate({})  # moments take more memory than the weights

    def own_text(self, entry: ModelEntry) -> list[list[int]]:
        """Return the model's answers to the built-in prompts, to be measured on: not what it was calibrated on."""
        texts, made = self.job.texts, self.drawing
        opening: AbstractContextManager[LanguageModel] = opened(entry, self.pack, texts)
        if isinstance(made, Drawing):
            opening = opened_wide(self.job, entry, made.model, pack=self.pack)
        with self.stages.stage(f"{self.job.role}: text", CHOICE_TOKENS) as advance, opening as model:
            found = sample_texts(model, texts.prompts, ends=texts.ends, tokens=CHOICE_TOKENS, seed=1, progress=advance)
        return [list(tokens) for tokens in found]

    def chosen(self, entry: ModelEntry, reference: Reference, text: Tokens) -> ActivationsEntry:
        """Choose activation bits for all graphs."""
        with self.stages.stage(f"{self.job.role}: activations", CHOICE_TOKENS) as advance:
            return choose_activations(
                self.job, entry, self.graph.model, reference, pack=self.pack, own_text=text, progress=advance
            )

    def checked(self, entry: ModelEntry, reference: Reference, text: Tokens) -> ModelEntry:
        """Check the base graph and return the entry with its parity, and its loss on a text. Raises ExportError."""
        with self.stages.stage(f"{self.job.role}: parity"):
            write_exact(self.graph.model, self.folder / EXACT_FILE)
            exact = f"{self.job.role}/{EXACT_FILE}"
            parity = check_parity(entry, self.pack, exact=exact, reference=reference, texts=self.job.texts)
            (self.folder / EXACT_FILE).unlink()
        entry = replace(entry, parity=parity)
        return self._with_loss(entry, reference, text) if text else entry

    def file_checked(self, entry: ModelEntry, reference: Reference, steps: KeptSteps) -> ModelEntry:
        """Check the GGUF file and return the entry with its parity, and its loss on a text. Raises ExportError."""
        job = self.job
        with self.stages.stage(f"{job.role}: parity"):
            parity = check_file(entry, self.pack, reference=reference, texts=job.texts)
        entry = replace(entry, parity={**entry.parity, **parity})
        if not job.recipe.quantized:
            return entry
        text = steps.value("text", list[list[int]], lambda: self.own_text(entry))
        return self._with_loss(entry, reference, text)

    def _with_loss(self, entry: ModelEntry, reference: Reference, text: Tokens) -> ModelEntry:
        """Return the entry with the loss on the answers in a text of `own_text`."""
        prompts = cycle(self.job.texts.prompts)
        texts = [ScoredText(tuple(tokens), len(prompt)) for tokens, prompt in zip(text, prompts, strict=False)]
        with (
            self.stages.stage(f"{self.job.role}: loss", sum(each.scored for each in texts)) as advance,
            opened(entry, self.pack, self.job.texts) as model,
        ):
            return replace(entry, parity={**entry.parity, **measure_loss(model, reference, texts, progress=advance)})

    def with_variants(self, entry: ModelEntry, reference: Reference) -> ModelEntry:
        """Build and check the other requested graphs and return the entry with them. Raises ExportError."""
        job = self.job
        variants = VariantJob(job.role, self.pack, job.graphs, self.graph, reference, job.texts)
        for name in job.graphs.names[1:]:
            with self.stages.stage(f"{job.role}: {name} graph"):
                entry = variants.add(name, entry)
        return entry

    def with_gguf(self, entry: ModelEntry, reference: Reference, *, windows: Windows) -> ModelEntry:
        """Write the GGUF file, or its plan if only that is planned, and return the entry with it.

        Raises ExportError if a requested file cannot be made.
        """
        job, request = self.job, self.job.gguf
        if request is None:
            return entry

        def content() -> GgufFile:
            stored = StoredRows(self.drawing.weights, self.folder / WEIGHTS_FILE)
            return GgufFile(request, job.source, reference.network, windows=windows, stored=stored)

        if request.planned:
            try:
                with self.stages.stage(f"{job.role}: gguf plan"):
                    file = self.folder / WEIGHTS_FILE
                    content().write_plan(self.folder / PLAN_FILE, self.drawing.weights, file)
            except ExportError as error:  # then only the ONNX graphs are made
                _log.info("no GGUF file can be made of the %s: %s", job.role, error)
                return entry
            return replace(entry, gguf_plan=f"{job.role}/{PLAN_FILE}")
        with self.stages.stage(f"{job.role}: gguf", entry.parameters) as advance:
            reading = content().write(self.folder / GGUF_FILE, progress=advance, release=self.checkpoint.release)
        return replace(
            entry,
            gguf=f"{job.role}/{GGUF_FILE}",
            notes=(*entry.notes, *reading.notes),
            parity={**entry.parity, **reading.measured},
        )


class _Calibration:
    """What is measured before the weights are written, each when it is first asked for."""

    def __init__(self, work: _ModelSteps, entry_in: Callable[[Path], ModelEntry], reference: Reference) -> None:
        self._work, self._entry_in, self._reference = work, entry_in, reference

    @cached_property
    def _texts(self) -> Tokens:
        """The given texts, or text generated with uncalibrated weights, written to a temporary folder."""
        work, job, texts = self._work, self._work.job, self._work.job.texts
        if job.calibration:
            return job.calibration
        with (
            work.stages.stage(f"{job.role}: calibration text", TOKENS) as advance,
            TemporaryDirectory(dir=work.pack) as place,
        ):
            folder = Path(place) / job.role
            folder.mkdir()
            work.drawing.write_weights(folder, progress=lambda amount: None, release=work.checkpoint.release)
            work.drawing.write_graph(folder)
            entry = self._entry_in(Path(place))
            if entry.gguf and (note := not_on_kernels(entry, Path(place))):
                raise ExportError(f"no text to calibrate on can be written here, {note}: {_WITHOUT_TEXT}")
            with opened(entry, Path(place), texts) as model:
                return sample_texts(model, texts.prompts, ends=texts.ends, progress=advance)

    @cached_property
    def moments(self) -> dict[str, Moments]:
        """The moments on the texts, which are written as importance if that is requested."""
        job, tokens, wanted = self._work.job, sum(map(len, self._texts)), self._work.drawing.weights.names()
        with self._work.stages.stage(f"{job.role}: calibration", tokens) as advance:
            found = find_moments(
                self._reference, self._texts, tied=job.source.shape.tied, wanted=wanted, progress=advance
            )
        if job.importance_out is not None:
            title = job.calibration_name or f"text that {job.source.name} wrote"
            write_sums(job.importance_out, sums_of(found, job.source.shape, tokens=tokens), texts=[title])
        return found

    def matrices(self) -> list[str]:
        """Choose the matrices with 8 bits."""
        job, some = self._work.job, some_of(self._texts, WIDTH_TOKENS)
        with self._work.stages.stage(f"{job.role}: widths", sum(map(len, some))) as advance:
            gradients = find_gradients(self._reference, some, progress=advance)
        changes = expected_changes(
            self._reference,
            gradients,
            self.moments,
            block_size=job.recipe.body.block_size,
            release=self._work.checkpoint.release,
        )
        return choose_matrices(job.recipe, matrix_sizes(self._reference.network), changes)


def _network(job: ModelJob, checkpoint: Checkpoint) -> PreTrainedModel:
    """Open the network, with position tables cut to the exported context."""
    network = open_network(job.source.folder, checkpoint, architecture=job.source.shape.architecture)
    network.config.max_position_embeddings = job.context  # after the rotary module was made from the original value
    return network


def _drawing(job: ModelJob, network: PreTrainedModel, *, windows: Windows) -> Drawing | FileDrawing:
    if job.source.shape.architecture in HYBRIDS:
        assert job.gguf is not None
        content = partial(GgufFile, job.gguf, job.source, network, windows=windows, recipe=job.recipe)
        return FileDrawing(rounded_weights(network, job.recipe), content)
    # Only the 8-bit kernels compute a row bit-identically whatever the number of rows. A draft's proposals may differ
    # with the number of rows, because the target decides which tokens are emitted.
    early = job.recipe.body.bits == 8 or job.role == "draft"
    shape = job.source.shape
    builder = ARCHITECTURES[shape.architecture].builder
    return draw(
        network,
        builder=builder,
        head_size=shape.head_size,
        recipe=job.recipe,
        early_rows=early,
        windowed=windows.layers,
    )


def _entry(job: ModelJob, drawing: Drawing, *, parameters: int, window: int) -> ModelEntry:
    shape = job.source.shape
    return ModelEntry(
        architecture=shape.architecture,
        rows=shape.rows,
        context=job.context,
        hidden_size=shape.hidden,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        parameters=parameters,
        weights=f"{job.role}/{WEIGHTS_FILE}",
        graphs={"base": graph_entry(drawing.model, f"{job.role}/{GRAPH_FILE}")},
        bits=job.recipe.body.bits,
        block_size=job.recipe.body.block_size,
        head_bits=job.recipe.head.bits,
        license=job.license,
        source=job.source.origin,
        window=window,
        quantization=job.recipe.remark,
        notes=job.notes,
    )
