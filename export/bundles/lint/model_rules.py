"""Rules about models: graphs, weights, GGUF files, chips, tokenizer, adapters, licences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from edgedecode.adapters.peft_folder import read_peft_adapter
from edgedecode.errors import EdgeDecodeError
from edgedecode.gguf.adapter import check_adapter
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.header import Header, read_header
from edgedecode.onnx_format.graph_check import Weights, check_graph
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.chips import CHIPS
from edgedecode.pack.context_check import check_context
from edgedecode.pack.static_graphs import HEAD_ROWS
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from ..bundle import BundleAdapter, BundleGraph, BundleModel
from ..pack_files import SOC_MAP, soc_map_of
from .finding import Fault, LintedBundle

_EXPORT = "export the pack again and package it again"
_AGAIN = "package it again"
_NEEDED = {"input_ids", "seqlens_k", "total_length", "rows"}


def loadable(found: LintedBundle) -> Iterator[Fault]:
    models = found.bundle.models
    if "target" not in models:
        yield Fault("bundle.json", "has no target model", _AGAIN)
    for role, model in models.items():
        if not model.gguf and not model.graphs:
            yield Fault("bundle.json", f"has neither a graph nor a GGUF file of the {role}", _AGAIN)
        if any(graph.provider == "cpu" for graph in model.graphs) and not model.weights:
            yield Fault("bundle.json", f"names no weights of the {role}", _AGAIN)


def graphs(found: LintedBundle) -> Iterator[Fault]:
    for role, model, graph in _graphs(found):
        if graph.provider != "cpu" or not {graph.file, model.weights} <= found.sound:
            continue
        weights = Weights(PurePosixPath(model.weights).name, found.bundle.files[model.weights].nbytes)
        if PurePosixPath(model.weights).parent != PurePosixPath(graph.file).parent:
            yield Fault(graph.file, f"is not in the folder of {model.weights}, where it looks for weights", _AGAIN)
            continue
        try:
            checked = check_graph(found.root / graph.file, weights)
        except (ValueError, OSError) as error:
            yield Fault(graph.file, f"does not load: {error}", _EXPORT)
            continue
        if lacking := sorted(_NEEDED - checked.inputs.keys()):
            yield Fault(graph.file, f"of the {role} has no input {lacking[0]}, which the app's loop gives", _EXPORT)
        caches = sum(name.startswith("past_key_values.") for name in checked.inputs)
        if caches != 2 * model.layers:
            yield Fault(graph.file, f"has {caches} caches, {model.layers} layers need {2 * model.layers}", _EXPORT)


def compiled(found: LintedBundle) -> Iterator[Fault]:
    for _, _, graph in _graphs(found):
        if not graph.socs:
            continue
        if not graph.binary:
            yield Fault("bundle.json", f"names no binary of {graph.file}", _AGAIN)
        elif {graph.file, graph.binary} <= found.sound:
            path = found.root / graph.file
            try:
                file = GraphFile.parse(path.read_bytes())
                inputs, outputs = ([each.name for each in values] for values in (file.inputs, file.outputs))
                check_context(path, found.root / graph.binary, inputs=inputs, outputs=outputs)
            except (ValueError, IndexError, OSError) as error:
                yield Fault(graph.file, f"does not load: {error}", "compile the pack again and package it again")


def chips(found: LintedBundle) -> Iterator[Fault]:
    for number in sorted({soc for _, _, graph in _graphs(found) for soc in graph.socs} - CHIPS.keys()):
        yield Fault("bundle.json", f"has graphs for the unknown chip {number}", "upgrade edgedecode, or package again")
    by_role = {
        role: {soc for graph in model.graphs for soc in graph.socs} for role, model in found.bundle.models.items()
    }
    target = by_role.get("target", set())
    for role, socs in by_role.items():
        if found.for_npu and socs != target:
            other = sorted(map(str, socs ^ target))
            yield Fault("bundle.json", f"has graphs for {other[0]} of only one of target and {role}", _AGAIN)


def widths(found: LintedBundle) -> Iterator[Fault]:
    for role, model in found.bundle.models.items():
        for soc in sorted({soc for graph in model.graphs for soc in graph.socs}):
            own = sorted(graph.width for graph in model.graphs if soc in graph.socs)
            if own[0] > HEAD_ROWS:
                yield Fault("bundle.json", f"has no narrow graph of the {role} for {soc}", "compile --widths 128,8,1")
            if len({*own}) < len(own):
                yield Fault("bundle.json", f"has two graphs of one width of the {role} for {soc}", _AGAIN)
        if len({graph.slots for graph in model.graphs if graph.socs}) > 1:
            yield Fault("bundle.json", f"has graphs of the {role} of different contexts", "compile the pack again")


def soc_map(found: LintedBundle) -> Iterator[Fault]:
    if not found.for_npu:
        return
    if {soc for _, _, graph in _graphs(found) for soc in graph.socs} <= CHIPS.keys():
        wanted = soc_map_of(found.bundle.models)
        if found.json(SOC_MAP) != wanted:
            yield Fault(SOC_MAP, "does not name the chips and graphs of bundle.json", _AGAIN)


def fallback(found: LintedBundle) -> Iterator[Fault]:
    for role, model in found.bundle.models.items():
        if found.for_npu and all(graph.provider != "cpu" for graph in model.graphs):
            yield Fault("bundle.json", f"has no graph of the {role} for the processors of other chips", _AGAIN)


def gguf(found: LintedBundle) -> Iterator[Fault]:
    headers: dict[str, Header] = {}
    for role, model in found.bundle.models.items():
        if model.gguf not in found.sound:
            continue
        try:
            headers[role] = read_header(found.root / model.gguf)
        except (EdgeDecodeError, ValueError, OSError) as error:
            yield Fault(model.gguf, f"does not load: {' '.join(str(error).split())}", _EXPORT)
            continue
        if headers[role].layers != model.layers:
            yield Fault(model.gguf, f"has {headers[role].layers} layers, bundle.json says {model.layers}", _AGAIN)


def token_counts(found: LintedBundle) -> Iterator[Fault]:
    counts = {role: model.rows for role, model in found.bundle.models.items()}
    for role, rows in counts.items():
        if rows < found.bundle.vocabulary_size:
            yield Fault(
                "bundle.json",
                f"has a {role} of {rows} rows, the tokenizer has {found.bundle.vocabulary_size} tokens",
                _EXPORT,
            )


def tokenizer(found: LintedBundle) -> Iterator[Fault]:
    name = found.bundle.tokenizer
    if name not in found.sound:
        return
    try:
        loaded = Tokenizer.from_file(found.root / name)
    except (EdgeDecodeError, ValueError, OSError) as error:
        yield Fault(name, f"does not load: {' '.join(str(error).split())}", _EXPORT)
        return
    if loaded.digest != found.bundle.tokenizer_digest:
        yield Fault(name, "is not the tokenizer of the models: its digest is another", _AGAIN)


def chat_template(found: LintedBundle) -> Iterator[Fault]:
    name, generation = found.bundle.chat_template, found.bundle.generation
    if name is None:
        yield Fault("bundle.json", "has no chat template: the app gives plain text to the model", _EXPORT)
    elif name in found.sound:
        try:
            ChatTemplate(found.text(name), bos_token=generation.bos_token, eos_token=generation.eos_token)
        except EdgeDecodeError as error:
            yield Fault(name, f"does not compile: {' '.join(str(error).split())}", _EXPORT)


def end_tokens(found: LintedBundle) -> Iterator[Fault]:
    ends = found.bundle.generation.end_token_ids
    if not ends:
        yield Fault("bundle.json", "has no end token: answers end at the limit of tokens only", _EXPORT)
    for token in ends:
        if token >= found.bundle.vocabulary_size:
            yield Fault("bundle.json", f"has the end token {token} outside the vocabulary", _EXPORT)


def adapters(found: LintedBundle) -> Iterator[Fault]:
    for name, adapter in found.bundle.adapters.items():
        model = found.bundle.models.get(adapter.role)
        if model is None:
            yield Fault("bundle.json", f"has the adapter {name} for the missing {adapter.role}", _AGAIN)
        elif bool(model.gguf) != adapter.file.endswith(".gguf"):
            yield Fault(
                adapter.file, f"is not in the format of the {adapter.role}", "add it to the pack in that format"
            )
        elif adapter.file in found.sound:
            try:
                rank = _adapter_rank(found, adapter, model)
            except (EdgeDecodeError, ValueError, OSError) as error:
                what = " ".join(str(error).split())
                yield Fault(adapter.file, f"does not load: {what}", "add it to the pack again and package it again")
                continue
            if rank != adapter.rank:
                yield Fault(adapter.file, f"has the rank {rank}, bundle.json says {adapter.rank}", _AGAIN)


def _adapter_rank(found: LintedBundle, adapter: BundleAdapter, model: BundleModel) -> int:
    """Return the rank of an adapter's matrices. Raises EdgeDecodeError if it cannot be used with the model."""
    path = found.root / adapter.file
    if model.gguf:
        header = read_header(found.root / model.gguf)
        return check_adapter(read_contents(path, arrays=True), path, header, name=adapter.role).rank
    read = read_peft_adapter(path.with_name("adapter_config.json"), path)
    read.check_values()
    if (layers := 1 + max(each.layer for each in read.matrices())) > model.layers:
        raise ValueError(f"it changes layer {layers}, the {adapter.role} has {model.layers}")
    return read.rank


def licenses(found: LintedBundle) -> Iterator[Fault]:
    for role, model in found.bundle.models.items():
        if not model.license:
            yield Fault("bundle.json", f"names no licence of the {role}", "state the base model's licence in the pack")


def _graphs(found: LintedBundle) -> Iterator[tuple[str, BundleModel, BundleGraph]]:
    for role, model in found.bundle.models.items():
        for graph in model.graphs:
            yield role, model, graph
