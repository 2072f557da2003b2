"""Forecasts an export's stages, sizes, memory and duration, before anything large is read.

The constants were measured on two cores with a 0.5B Qwen2 shape in int4, and the memory also with the bundled pair in
int8. They are only precise enough to tell minutes from hours, so durations are reported as classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.adapters.adapter_change import adapter_role
from edgedecode.pack.new_folder import check_place

from .base_model import Texts, open_texts
from .gguf.model_file import floats_nbytes, mixture_notes
from .graph.checkpoint import has_weights, weight_files
from .graph.model_shape import Shape, check_engine
from .job import weights_nbytes
from .pair_export import PairRequest, adapters_nbytes, plan_pair

_STRUCTURE_SECONDS = 2.5, 3.0
_WEIGHTS_SECONDS = 0.0, 12.0
_FEEDBACK_SECONDS = 0.0, 75.0
_MIXTURE_SECONDS = 1.0, 60.0
_TEXT_SECONDS = 1.0, 180.0
_CALIBRATION_SECONDS = 1.0, 250.0
_ACTIVATIONS_SECONDS = 1.0, 55.0
_PARITY_SECONDS = 0.2, 50.0
_LOSS_SECONDS = 1.0, 70.0
_VARIANT_SECONDS = 0.3, 20.0
"""A constant, and seconds per billion parameters. Structure to parity are fitted to a 0.5B model in 4 bits and to the
bundled pair; calibration is estimated from its forward passes over 4,096 and 6,700 tokens."""
_NOISE_SECONDS = 0.001, 0.07
"""Per position: a constant, and seconds per billion bytes of weights."""

_PROCESS_NBYTES = 440_000_000
"""Python with torch, transformers and onnxruntime loaded."""
_PEAK_WEIGHTS = 3.0
"""The peak beyond that, as a multiple of the weights file: an engine holds it twice, the reference holds one layer in
float32."""

_RUNNING_NBYTES, _WORKSPACE_NBYTES = 100_000_000, 30_000_000
"""Memory of a chat besides weights and KV cache: the process, and the workspace of each model."""
_KV_NBYTES = 2 * 4
"""One key and one value element in the ONNX engine's default cache; llama.cpp's takes half of that."""

_GRAPH_NBYTES, _LAYER_NBYTES = 2_000, 6_600
"""Size of a graph file: a constant, and the share of each layer."""
_CLASSES = ((15, "seconds"), (90, "about a minute"), (2700, "minutes"))
"""Upper limits in seconds, and names."""


@dataclass(frozen=True, slots=True)
class StageForecast:
    """A stage and its estimated duration on two cores."""

    title: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """One role's model. `nbytes` is its share of the pack, `weights_nbytes` the size of its weights file."""

    role: str
    source: str
    parameters: int
    weights_nbytes: int
    nbytes: int
    peak_nbytes: int
    download_nbytes: int
    context: int
    """Maximum number of positions it can run with."""
    kv_token_nbytes: int
    """Size of one position's keys and values."""
    temporary_nbytes: int
    """Size of the temporary file outside the pack: the float weights that llama.cpp quantizes."""
    stages: tuple[StageForecast, ...]
    notes: tuple[str, ...]
    """Checks that were skipped, and what users of the pack need to know."""


@dataclass(frozen=True, slots=True)
class PairForecast:
    """The complete export. Models are exported one after another, so the largest one sets the peak."""

    models: tuple[ModelForecast, ...]

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in self.models)

    @property
    def peak_nbytes(self) -> int:
        return max(model.peak_nbytes for model in self.models)

    @property
    def temporary_nbytes(self) -> int:
        """Temporary disk space needed besides the pack's own size."""
        return max(model.temporary_nbytes for model in self.models)

    def running_nbytes(self, positions: int) -> int:
        """Estimate a chat's memory with a context of `positions` for each model."""
        models = self.models
        each = (m.weights_nbytes + _WORKSPACE_NBYTES + m.kv_token_nbytes * min(positions, m.context) for m in models)
        return _RUNNING_NBYTES + sum(each)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for model in self.models for stage in model.stages)


def forecast_pair(request: PairRequest, *, out: Path | None) -> PairForecast:
    """Run the export's checks that need no weights, then forecast what it would do.

    Weights and tokenizer may be missing: notes list the checks that were skipped. `request.out` is ignored; `out`, if
    given, must not exist yet and must have enough disk space. Raises ExportError or IncompatiblePair.
    """
    if out is not None:
        check_place(out, nbytes=0)
    names = {"target": request.target} | ({"draft": request.draft} if request.draft is not None else {})
    texts = {role: open_texts(name) for role, name in names.items()}
    for model in texts.values():
        check_engine(model.config, model.shape, name=model.name, body=request.recipe.body, head=request.recipe.head)
    notes: tuple[str, ...] = ()
    if all((model.folder / "tokenizer.json").is_file() for model in texts.values()):
        notes = plan_pair(request).notes
    models = [
        _model(role, found, _of_role(request, role, texts), notes if role == "target" else ())
        for role, found in texts.items()
    ]
    forecast = PairForecast(tuple(models))
    if out is not None:
        check_place(out, nbytes=forecast.nbytes + forecast.temporary_nbytes)
    return forecast


def _of_role(request: PairRequest, role: str, roles: Collection[str]) -> PairRequest:
    """Return what is requested of one model: its own adapters, and a lora graph for them."""
    adapters = {name: path for name, path in request.adapters.items() if adapter_role(name, roles) == role}
    graphs = request.graphs.with_adapters(rank=1) if adapters else request.graphs
    return replace(request, adapters=adapters, graphs=graphs)


def time_class(seconds: float) -> str:
    """Return the duration's class, as coarse as the estimate."""
    return next((name for limit, name in _CLASSES if seconds < limit), "hours")


def _model(role: str, model: Texts, request: PairRequest, notes: tuple[str, ...]) -> ModelForecast:
    context, kind = request.span.context_of(model.shape), request.gguf_kind if request.gguf else ""
    weights = weights_nbytes(model.shape, request.recipe.of(model.shape), context=context)
    tokenizer = model.folder / "tokenizer.json"
    graph = _GRAPH_NBYTES + _LAYER_NBYTES * model.shape.layers
    texts = tokenizer.stat().st_size if role == "target" and tokenizer.is_file() else 0
    adapters = adapters_nbytes(request.adapters)
    return ModelForecast(
        role=role,
        source=model.origin,
        parameters=model.shape.parameters,
        weights_nbytes=weights,
        nbytes=weights + len(request.graphs.names) * graph + texts + (weights if request.gguf else 0) + adapters,
        peak_nbytes=round(_PROCESS_NBYTES + _PEAK_WEIGHTS * weights),
        download_nbytes=model.download_nbytes,
        context=context,
        kv_token_nbytes=_KV_NBYTES * model.shape.layers * model.shape.kv_heads * model.shape.head_size,
        temporary_nbytes=floats_nbytes(model.shape) if kind else 0,
        stages=tuple(_stages(role, model.shape, weights, request)),
        notes=(*notes, *request.span.notes_on(model.shape), *mixture_notes(kind), *_unchecked(model)),
    )


def _stages(role: str, shape: Shape, weights: int, request: PairRequest) -> Iterator[StageForecast]:
    calibrated = request.recipe.calibrated
    steps = [("structure", _STRUCTURE_SECONDS)]
    if calibrated and request.calibration_text is None:
        steps.append(("calibration text", _TEXT_SECONDS))
    if calibrated:
        steps.append(("calibration", _CALIBRATION_SECONDS))
    steps.append(("weights", _FEEDBACK_SECONDS if calibrated else _WEIGHTS_SECONDS))
    if request.recipe.quantized:
        steps.append(("text", (_TEXT_SECONDS[0] / 4, _TEXT_SECONDS[1] / 4)))  # a quarter of the calibration's length
        if request.activations != "8":
            steps.append(("activations", _ACTIVATIONS_SECONDS))
    steps.append(("parity", _PARITY_SECONDS))
    if request.recipe.quantized:
        steps.append(("loss", _LOSS_SECONDS))
    steps += [(f"{name} graph", _VARIANT_SECONDS) for name in request.graphs.names[1:]]
    if request.gguf and request.imatrix_text is not None:
        steps.append(("importance for gguf", _CALIBRATION_SECONDS))
    if request.gguf:
        steps.append(("gguf", _MIXTURE_SECONDS if request.gguf_kind else _WEIGHTS_SECONDS))
    for title, (start, each) in steps:
        yield StageForecast(f"{role}: {title}", start + each * shape.parameters / 1e9)
    if request.noise_positions:
        start, each = _NOISE_SECONDS
        yield StageForecast(f"{role}: kernel noise", request.noise_positions * (start + each * weights / 1e9))


def _unchecked(model: Texts) -> Iterator[str]:
    """Yield a note for each missing file; only the names of local weight files are checked."""
    if not (model.folder / "tokenizer.json").is_file():
        yield "no tokenizer.json: vocabulary, end ids, chat template and the pair's tokenizers were not checked"
    if model.commit is not None:
        return
    if has_weights(model.folder):
        weight_files(model.folder)
    else:
        yield "no weights: their names and sizes were not compared with config.json"
