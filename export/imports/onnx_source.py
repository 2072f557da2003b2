"""Opens a folder made by another exporter: one ONNX graph, its weights and its tokenizer.

The configuration is onnxruntime-genai's genai_config.json or Hugging Face's config.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import ExportError
from edgedecode.text.tokenizer import Tokenizer

from ..base_model import read_json, read_license
from ..frameworks import reason_of, refused
from ..json_fields import Fields
from ..pack_texts import TOKENIZER

if TYPE_CHECKING:
    import onnx_ir as ir

_GENAI, _CONFIG, _GRAPH = "genai_config.json", "config.json", "model.onnx"
_OTHER_PARTS = ("vision", "speech", "embedding", "encoder")


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """A folder whose graph and tokenizer have been checked. The weights are not read."""

    name: str
    folder: Path
    graph: Path
    model: ir.Model
    weights: Path | None
    """The weights file, with links resolved; None: the weights are stored in the graph's file."""
    config: Fields
    """The model's configuration: `model` of genai_config.json, else config.json."""
    search: Fields | None
    """The decoding defaults of genai_config.json."""
    tokenizer: Tokenizer
    rows: int
    architecture: str
    context: int
    window: int
    """Sliding window in tokens, from the configuration; 0: none."""
    license: str


def open_onnx_source(folder: Path) -> OnnxSource:
    """Find and check the model in `folder`. Raises ExportError."""
    if not folder.is_dir():
        raise ExportError(f"there is no folder {str(folder)!r}: give the folder of an ONNX model")
    with refused(folder):
        return _open(folder)


def _open(folder: Path) -> OnnxSource:
    genai = _optional(folder / _GENAI)
    config = genai.child("model") if genai is not None else _optional(folder / _CONFIG)
    if config is None:
        raise ExportError(f"{folder} has neither {_GENAI} nor {_CONFIG}, which describe the model")
    graph = _graph_file(folder, config if genai is not None else None)
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
        search=genai.child("search") if genai is not None and "search" in genai.values else None,
        tokenizer=tokenizer,
        rows=rows,
        architecture=_architecture(config),
        context=config.integer("context_length" if genai is not None else "max_position_embeddings", low=1),
        window=_window(config),
        license=read_license(folder, config),
    )


def _optional(path: Path) -> Fields | None:
    value = read_json(path)
    return None if value is None else Fields.of(value, path.name)


def _graph_file(folder: Path, genai: Fields | None) -> Path:
    """Return the graph that genai_config.json names; without it model.onnx, or the only graph in the folder."""
    if genai is not None:
        decoder = genai.child("decoder")
        if "pipeline" in decoder.values or any(part in genai.values for part in _OTHER_PARTS):
            raise ExportError(f"{folder} has a model of several graphs: only plain decoders can be imported")
        name = decoder.text("filename")
    else:
        found = sorted(path.name for path in folder.glob("*.onnx"))
        if len(found) > 1 and _GRAPH not in found:
            raise ExportError(f"{folder} has {len(found)} graphs ({', '.join(found[:3])}), none named {_GRAPH}")
        name = found[0] if len(found) == 1 else _GRAPH
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


def _weights(model: ir.Model, graph: Path) -> Path | None:
    """Return the file of all external weights, and rename it in the graph to the name that its link resolves to."""
    import onnx_ir as ir

    tensors = list(_external(model))
    names = sorted({str(tensor.location) for _, tensor in tensors})
    if not names:
        return None
    if len(names) > 1:
        raise ExportError(f"{graph} has its weights in {len(names)} files ({names[0]} first): save them as one")
    if Path(names[0]).name != names[0]:
        raise ExportError(f"{graph} has its weights in {names[0]!r}, which is not next to it: unsupported")
    path = graph.parent / names[0]
    if not path.is_file():
        raise ExportError(f"{graph} has its weights in {names[0]}, which is missing: copy or download it again")
    path = path.resolve()
    needed = max((tensor.offset or 0) + tensor.nbytes for _, tensor in tensors)
    if path.stat().st_size < needed:
        raise ExportError(f"{path} is truncated: it has {path.stat().st_size} bytes of {needed}; download it again")
    for value, tensor in tensors:  # in the hub's cache, the linked file has a different name
        assert value.dtype is not None
        value.const_value = ir.ExternalTensor(
            path.name,
            tensor.offset,
            tensor.length,
            value.dtype,
            shape=tensor.shape,
            name=str(value.name),
            base_dir=path.parent,
        )
    return path


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    import onnx_ir as ir

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            yield value, value.const_value


def _architecture(config: Fields) -> str:
    named = config.texts("architectures") if config.values.get("architectures") else ()
    return named[0] if named else config.optional_text("type") or config.optional_text("model_type") or "unknown"


def _window(config: Fields) -> int:
    """Return the sliding window of genai_config.json or config.json; 0 if there is none or it is disabled."""
    inner = config.child("decoder") if "decoder" in config.values else config
    value = inner.values.get("sliding_window")
    if value is None or inner.values.get("use_sliding_window") is False:
        return 0
    if isinstance(value, dict):
        return inner.child("sliding_window").optional_integer("window_size") or 0
    return inner.integer("sliding_window", low=0)
