"""Checks the models of a pack against its manifest: their graphs, GGUF files, compiled files and sizes.

The files are parsed here in Python, within size bounds, before native code opens them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from edgedecode.errors import ManifestError
from edgedecode.gguf.header import read_header
from edgedecode.onnx_format.graph_check import CheckedGraph, Weights, check_graph
from edgedecode.onnx_format.graph_file import ValueInfo
from edgedecode.onnx_format.graph_memory import UnknownOperator
from edgedecode.text.chat_template import MOST_CHARACTERS

from .context_check import check_context
from .entries import DRAFT, ID_NBYTES, TRIM
from .gguf_check import check_header
from .manifest import Graph, Manifest, ModelEntry

_GRAPH_NBYTES, _LAYER_NBYTES = 4 << 20, 256 << 10
"""Largest graph without the rows of a trim: a constant plus a share per layer; 10 kB per layer are typical."""
_TEMPLATE_NBYTES, _TOKENIZER_NBYTES, _PLAN_NBYTES = 4 * MOST_CHARACTERS, 64 << 20, 4 << 20
"""Limits for files that are read completely: a tokenizer of 262,000 tokens has 34 MB, a plan 100 bytes per tensor."""


def check_models(manifest: Manifest, root: Path) -> None:
    """Check each model's manifest entry against its files."""
    _check_small(manifest, root, manifest.tokenizer, _TOKENIZER_NBYTES)
    if manifest.chat_template is not None:
        _check_small(manifest, root, manifest.chat_template, _TEMPLATE_NBYTES)
    for role in (*manifest.models, *_trimmed(manifest)):
        entry = manifest.located(role)
        _check_sizes(manifest, DRAFT if role == TRIM else role, entry)
        if entry.own_tokenizer:
            _check_small(manifest, root, entry.own_tokenizer, _TOKENIZER_NBYTES)
        if entry.gguf_plan:
            _check_small(manifest, root, entry.gguf_plan, _PLAN_NBYTES)
        nbytes = manifest.weights_nbytes(DRAFT if role == TRIM else role)
        weights = Weights(PurePath(entry.weights).name, nbytes)
        for graph in entry.graphs.values():
            path = root / graph.file
            try:
                _check_graph(path, graph, entry, replace(weights, folded=_folded(entry, nbytes)))
            except (ValueError, OSError) as error:
                newer = f", {manifest.upgrade}" if isinstance(error, UnknownOperator) else ""
                raise ManifestError(
                    f"the graph {path} is refused: {error}; export or import the pack again{newer}"
                ) from None
            _check_compiled(graph, root)
        if entry.gguf:
            check_header(read_header(root / entry.gguf), entry, path=root / entry.gguf)
    _check_head(manifest, root)


def _check_head(manifest: Manifest, root: Path) -> None:
    """Check the drafting head's file; its engine checks the shapes of its tensors."""
    head = manifest.head
    if head is None:
        return
    from edgedecode.gguf.architectures import ASSISTANT, HEADS, MTP  # late: few packs have one
    from edgedecode.gguf.contents import read_contents
    from edgedecode.gguf.header import OUTPUT

    target, contents = manifest.models["target"], read_contents(root / head.gguf)
    kind = contents.fields.get("general.architecture")
    first = "nextn.pre_projection.weight" if kind == ASSISTANT.name else "fc.weight"
    output, fc = contents.tensors.get(OUTPUT), contents.tensors.get(first)
    if kind not in HEADS or output is None or fc is None:
        raise ManifestError(f"{root / head.gguf} holds no drafting head: add the head again")
    read = (len(head.taps) + (kind == MTP.name)) * target.hidden_size
    wide, most = target.hidden_size, target.layers + (kind == MTP.name)
    if kind == ASSISTANT.name:
        read, wide, most = 2 * target.hidden_size, head.hidden_size, target.layers + 2
    if (output.shape, fc.shape, head.hidden_size) != ((wide, head.rows), (read, wide), wide):
        raise ManifestError(f"{root / head.gguf} has other sizes than the manifest says: add the head again")
    if any(not 0 < layer < most for layer in head.taps):
        raise ManifestError(f"the head reads layers {list(head.taps)}, the target has {target.layers}: add it again")


def _check_compiled(graph: Graph, root: Path) -> None:
    """Check the files that name a graph's binaries, which are in a vendor's format that only its library reads."""
    for compiled in graph.compiled:
        path = root / compiled.file
        try:
            check_context(path, root / compiled.binary, inputs=graph.inputs, outputs=graph.outputs)
        except (ValueError, OSError) as error:
            raise ManifestError(f"the compiled graph {path} is refused: {error}; compile it again") from None


def _folded(entry: ModelEntry, nbytes: int) -> int:
    """Return how many weights constant folding converts from 16 to 32 bits before the first pass."""
    return nbytes // 2 if 16 in (entry.bits, entry.head_bits) else 0


def _check_small(manifest: Manifest, root: Path, name: str, most: int) -> None:
    if (nbytes := manifest.files[name].nbytes) > most:
        raise ManifestError(f"{root / name} has {nbytes} bytes, the limit is {most}: export the pack again")


def _check_sizes(manifest: Manifest, role: str, entry: ModelEntry) -> None:
    where = f"manifest.models.{role}"
    held = manifest.weights_nbytes(role)
    if entry.rows * entry.hidden_size > 8 * held:  # a weight takes at least one bit
        raise ManifestError(
            f"{where} declares {entry.rows} rows of {entry.hidden_size} weights, its file has {held} bytes: "
            f"export the pack again"
        )
    if entry.trimmed is not None:
        nbytes = manifest.files[entry.trimmed.graph.token_ids].nbytes
        if nbytes % ID_NBYTES or not 0 < nbytes <= ID_NBYTES * manifest.models[role].rows:
            raise ManifestError(
                f"{where}.trimmed has a map of {nbytes} bytes for at most {manifest.models[role].rows} rows: run "
                f"`edgedecode trim` again"
            )


def _trimmed(manifest: Manifest) -> tuple[str, ...]:
    """Return the trimmed draft's name if there is one."""
    draft = manifest.models.get(DRAFT)
    return () if draft is None or draft.trimmed is None else (TRIM,)


def _check_graph(path: Path, graph: Graph, entry: ModelEntry, weights: Weights) -> None:
    """Raise ValueError unless the graph matches the manifest."""
    if path.suffix != ".onnx":
        raise ValueError("its name does not end in .onnx")
    kept = entry.rows if graph.token_ids else 0
    trimmed = 4 * kept * (entry.hidden_size + 64)
    most = _GRAPH_NBYTES + _LAYER_NBYTES * entry.layers + trimmed
    if (nbytes := path.stat().st_size) > most:
        raise ValueError(f"it has {nbytes} bytes, a graph of {entry.layers} layers needs less than {most}")
    found = check_graph(path, weights)
    for what, declared, actual in (("inputs", graph.inputs, found.inputs), ("outputs", graph.outputs, found.outputs)):
        if sorted(declared) != sorted(actual):
            differing = sorted({*declared} ^ {*actual}) or ["a name twice"]
            raise ValueError(f"its {what} are not those of the manifest, which differs in {differing[0][:60]!r}")
    _check_shapes(found, entry)


def _check_shapes(found: CheckedGraph, entry: ModelEntry) -> None:
    layers = sum(name.startswith("past_key_values.") and name.endswith(".key") for name in found.inputs)
    pairs: dict[str, tuple[int | str | None, int]] = {"layers": (layers, entry.layers)}
    if dims := _dims(found.outputs, "logits"):
        pairs["rows"] = dims[-1], entry.rows
    if len(dims := _dims(found.inputs, "past_key_values.0.key")) == 4:
        pairs |= {"KV heads": (dims[1], entry.kv_heads), "head size": (dims[3], entry.head_size)}
    for name, (actual, declared) in pairs.items():
        if isinstance(actual, int) and actual != declared:
            raise ValueError(f"it has {name} {actual}, the manifest says {declared}")
    if found.widths and entry.hidden_size not in found.widths:
        raise ValueError(f"its norms have widths {sorted(found.widths)}, the manifest says {entry.hidden_size}")
    if found.positions is not None and found.positions < entry.context:
        raise ValueError(f"it serves {found.positions} positions, the manifest says a context of {entry.context}")


def _dims(values: Mapping[str, ValueInfo], name: str) -> Sequence[int | str | None]:
    value = values.get(name)
    return () if value is None or value.dims is None else value.dims
