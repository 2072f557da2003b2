"""Opens a folder made by onnxruntime-genai's model builder: one ONNX graph, its weights, its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import Count, JsonValue, Positive

from ..base_model import ModelFolder, read_json, read_license
from ..frameworks import fields_of, reason_of, refused
from ..graph.model_shape import EndIds
from ..pack_texts import TOKENIZER

if TYPE_CHECKING:
    import onnx_ir as ir

_GENAI = "genai_config.json"


@dataclass(frozen=True, slots=True)
class _Window:
    window_size: Count | None = None


@dataclass(frozen=True, slots=True)
class _Decoder:
    filename: str
    head_size: Positive
    hidden_size: Positive
    num_hidden_layers: Positive
    num_key_value_heads: Positive
    sliding_window: _Window | Count | None = None
    pipeline: Any = None


@dataclass(frozen=True, slots=True)
class GenaiModel:
    """The model in genai_config.json. A model with one of the last four has several graphs."""

    decoder: _Decoder
    context_length: Positive
    type: str = "unknown"
    eos_token_id: EndIds = None
    license: Any = None
    vision: Any = None
    speech: Any = None
    embedding: Any = None
    encoder: Any = None

    @property
    def window(self) -> int:
        """The sliding window in tokens; 0: there is none."""
        found = self.decoder.sliding_window
        return (found.window_size if isinstance(found, _Window) else found) or 0


@dataclass(frozen=True, slots=True)
class _Genai:
    model: GenaiModel
    search: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxSource(ModelFolder):
    """A folder whose graph has been checked too. The weights are not read."""

    graph: Path
    model: ir.Model
    weights: Path
    """The weights file, with links resolved."""
    config: GenaiModel
    search: JsonValue
    """The decoding defaults of genai_config.json."""


def open_onnx_source(folder: Path) -> OnnxSource:
    """Find and check the model in `folder`. Raises ExportError."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ExportError(f"{str(folder)!r} {what}: give the folder of an ONNX model, or a GGUF file with --target")
    with refused(folder):
        return _open(folder)


def _open(folder: Path) -> OnnxSource:
    if (described := read_json(folder / _GENAI)) is None:
        raise ExportError(
            f"{folder} has no {_GENAI}: only graphs of onnxruntime-genai's model builder are imported; give the base "
            f"model's folder to `edgedecode export`, or a GGUF file to `import --target`"
        )
    genai = fields_of(described, _Genai, f"{folder}: {_GENAI}")
    config = genai.model
    graph = _graph_file(folder, config)
    if not (folder / TOKENIZER).is_file():
        raise ExportError(f"{folder} has no {TOKENIZER}: copy it there from the base model's folder")
    model = _load(graph)
    tokenizer = Tokenizer.from_file(folder / TOKENIZER)
    rows = _rows(model, graph)
    if tokenizer.size > rows:
        raise ExportError(
            f"{folder}: its tokenizer has {tokenizer.size} ids, its graph computes {rows} logits: "
            f"the files do not belong together"
        )
    return OnnxSource(
        name=folder.resolve().name,
        folder=folder,
        graph=graph,
        model=model,
        weights=_weights(model, graph),
        config=config,
        search=genai.search,
        tokenizer=tokenizer,
        rows=rows,
        ends=config.eos_token_id,
        license=read_license(folder, config.license),
    )


def _graph_file(folder: Path, config: GenaiModel) -> Path:
    """Return the graph that genai_config.json names."""
    parts = (config.decoder.pipeline, config.vision, config.speech, config.embedding, config.encoder)
    if any(part is not None for part in parts):
        raise ExportError(f"{folder} has a model of several graphs: only plain decoders can be imported")
    name = config.decoder.filename
    if Path(name).name != name or not (folder / name).is_file():
        raise ExportError(f"{folder} has no {name}: give the output folder of the exporter")
    return folder / name


def _load(path: Path) -> ir.Model:
    import onnx_ir as ir

    try:
        return ir.load(path)
    except Exception as error:  # protobuf and onnx_ir raise various types
        raise ExportError(f"{path} is not a valid ONNX file ({reason_of(error)}): build or download it again") from None


def _rows(model: ir.Model, graph: Path) -> int:
    logits = next((value for value in model.graph.outputs if value.name == "logits"), None)
    if logits is None or logits.shape is None or not isinstance(logits.shape[-1], int):
        found = ", ".join(str(value.name) for value in model.graph.outputs[:3]) or "nothing"
        raise ExportError(f"{graph} has the outputs {found}, but no logits of known width: it is not a language model")
    return logits.shape[-1]


def _weights(model: ir.Model, graph: Path) -> Path:
    """Return the file of all external weights, and rename it in the graph to the name that its link resolves to."""
    tensors = list(_external(model))
    names = sorted({str(tensor.location) for _, tensor in tensors})
    if len(names) != 1:
        where = f"{len(names)} files ({names[0]} first)" if names else "the graph's own file"
        raise ExportError(f"{graph} has its weights in {where}: save them as one file next to it")
    if Path(names[0]).name != names[0]:
        raise ExportError(f"{graph} has its weights in {names[0]!r}, which is not next to it: unsupported")
    path = graph.parent / names[0]
    if not path.is_file():
        raise ExportError(f"{graph} has its weights in {names[0]}, which is missing: copy or download it again")
    path = path.resolve()
    needed = max((tensor.offset or 0) + tensor.nbytes for _, tensor in tensors)
    if path.stat().st_size < needed:
        raise ExportError(f"{path} is truncated: it has {path.stat().st_size} bytes of {needed}; download it again")
    rename_weights(model, path)  # in the hub's cache, the linked file has a different name
    return path


def rename_weights(model: ir.Model, path: Path) -> None:
    """Let a graph read its external weights from a file with the same content."""
    import onnx_ir as ir

    for value, tensor in _external(model):
        value.const_value = ir.ExternalTensor(
            path.name,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=str(value.name),
            base_dir=path.parent,
        )


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    import onnx_ir as ir

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value, value.const_value
