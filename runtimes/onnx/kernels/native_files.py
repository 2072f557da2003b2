"""Writes a model as the native library opens it: the rewritten graph, its matrices as tiles, and its other weights.

Neither depends on this machine's processor: all instruction sets read the same tiles, of little-endian numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.decoding.model import LowRank, ModelCard
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.native_model import (
    NativeAdapter,
    NativeCache,
    NativeInput,
    NativeMemory,
    NativeModel,
    NativeRecurrent,
)
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.onnx_format.tensor import ExternalData, Tensor
from edgedecode.pack.entries import DRAFTING_HEAD
from edgedecode.pack.manifest import Graph
from edgedecode.user_notices import notice

from ..graph_needs import measured_sizes
from ..graph_session import ADAPTER_INPUT, FEATURES_INPUT, HIDDEN_INPUT, ROW_NUMBERS
from ..onnx_adapters import AdapterLayout, adapter_input
from ..onnx_footprint import plan_own_footprint, rows_per_pass
from .prepared import write_tiles
from .products import UINT8
from .rewriting import GIVEN_TILES
from .serving import Served, serve, thread_nbytes

THREADS = 8
"""The most threads that the nodes ask for. A session of the library uses as many of them as it is told to."""
_PAGE_NBYTES, _LARGE_NBYTES, _ALIGNMENT = 4096, 1 << 16, 64
_WEIGHTS = "weights.bin"


def write_model(
    request: ModelRequest, graph: Graph, card: ModelCard, folder: Path, adapters: Mapping[str, Sequence[LowRank]]
) -> NativeModel:
    """Write one of a model's graphs to `folder`/`request.name`. card: as far as the manifest determines it.

    Raises CapabilityError for a model that needs more than our kernels, with the reason.
    """
    entry, name, here = request.entry, request.name, folder / request.name
    rows = rows_per_pass(entry, adapters="lora" in graph.capabilities)
    beside = request.beside.table if isinstance(request.beside, NativeModel) else None
    served = serve(entry, graph, root=request.root, threads=THREADS, rows=rows, taps=request.taps, beside=beside)
    served = _checked(served, request.name)
    inputs = {value.name for value in GraphFile.parse(served.rewritten.data).inputs}
    if FEATURES_INPUT in inputs and HIDDEN_INPUT not in inputs:
        raise CapabilityError(
            f"the {name} drafts whole blocks, which the native library does not: package the pack without it "
            f"(`edgedecode head remove`)"
        )
    if ROW_NUMBERS in inputs:
        raise CapabilityError(
            f"the {name} reads values that are computed for each pass, as Gemma 4 does, which the native library does "
            f"not: run it with `edgedecode generate`"
        )
    here.mkdir(parents=True)
    data, weights = _outside(served.rewritten.data, request.root / entry.weights, here / _WEIGHTS)
    (here / "graph.onnx").write_bytes(data)
    sources = served.rewritten.sources()
    tiles = {source: f"{name}/{source}.bin" for source in sources if source != GIVEN_TILES}
    for source, file in tiles.items():
        write_tiles(served.library, sources[source], folder / file, release=served.weights.release)
    ids = ""
    if card.token_ids is not None:
        ids = f"{name}/token_ids.bin"
        (folder / ids).write_bytes(card.token_ids.astype("<i4").tobytes())
    return replace(
        _facts(request, served, graph, card, graph_nbytes=len(data)),
        graph=f"{name}/graph.onnx",
        weights=f"{name}/{_WEIGHTS}" if weights else "",
        tiles=tiles,
        given={GIVEN_TILES: beside.file} if isinstance(beside, _Table) and GIVEN_TILES in sources else {},
        head=DRAFTING_HEAD in graph.capabilities,
        token_ids=ids,
        adapters=_write_adapters(request, served, card, folder, adapters),
        table=_Table(served, tiles),
    )


def _write_adapters(
    request: ModelRequest, served: Served, card: ModelCard, folder: Path, adapters: Mapping[str, Sequence[LowRank]]
) -> dict[str, NativeAdapter]:
    """Write each adapter's matrices as the graph's inputs take them; one that does not fit stays behind."""
    inputs = [each for each in GraphFile.parse(served.rewritten.data).inputs if each.name.startswith(ADAPTER_INPUT)]
    shapes = {each.name: [size if isinstance(size, int) else 0 for size in each.dims or ()] for each in inputs}
    as_bytes = [each.name for each in inputs if each.elem_type == UINT8]
    layout, found = AdapterLayout(shapes, as_bytes, entry=request.entry, card=card), dict[str, NativeAdapter]()
    for name, matrices in adapters.items():
        try:
            products = layout.projections.sort(matrices)
        except CapabilityError as error:
            notice(f"the adapter {name} stays behind: {error}")
            continue
        file, listed = f"{request.name}/adapters/{len(found)}.bin", list[NativeInput]()
        (folder / file).parent.mkdir(exist_ok=True)
        with (folder / file).open("wb") as write:
            for product in products:
                for kind, values in zip("ab", layout.made(product), strict=True):
                    write.write(b"\0" * (-write.tell() % _ALIGNMENT))
                    own = f"{adapter_input(product.projection)}.{kind}"
                    listed.append(NativeInput(own, write.tell(), values.shape))
                    write.write(values.tobytes())
        found[name] = NativeAdapter(file, listed)
    return found


class _Table:
    """The embedding of a model that was written, and the file with its tiles; `given_table` reads it."""

    def __init__(self, served: Served, tiles: Mapping[str, str]) -> None:
        places = {source: np.empty(0, np.uint8) for source in tiles}
        self.table = served.table(places)
        self.file = next((tiles[each] for each in tiles if self.table and self.table.tiles is places[each]), "")


def _checked(served: Served | None, name: str) -> Served:
    """Return what is served. Raises CapabilityError for a model that our kernels do not run alone."""
    if served is None:
        raise CapabilityError(
            f"the {name} does not run on our kernels here, the only ones that the native library has "
            f"(`edgedecode devices -m PACK` says why)"
        )
    if left := served.rewritten.left:
        parts = ", ".join(f"{count} {operator}" for operator, count in sorted(left.items()))
        raise CapabilityError(
            f"the {name} runs in part on ONNX Runtime's own kernels ({parts}), the native library runs ours only: "
            f"export it with --bits 4 or 8"
        )
    return served


def _outside(data: bytes, source: Path, place: Path) -> tuple[bytes, int]:
    """Copy what a graph reads of a weights file to a new one. Return the graph for it, and the new file's size."""
    file = GraphFile.parse(data)
    outside = {name: tensor for name, tensor in file.initializers.items() if tensor.external is not None}
    if not outside:
        return data, 0
    with source.open("rb") as read, place.open("wb") as write:
        for name, tensor in outside.items():
            assert tensor.external is not None
            start, length = tensor.external.offset, tensor.external.length or 0
            read.seek(start)
            values = read.read(length)
            if not length or len(values) < length:
                raise ManifestError(f"{source} has not all of {name[:60]!r}: export or import the pack again")
            write.write(b"\0" * (-write.tell() % (_PAGE_NBYTES if length >= _LARGE_NBYTES else _ALIGNMENT)))
            external = ExternalData(place.name, write.tell(), length)
            file.initializers[name] = Tensor(name, tensor.data_type, tensor.dims, None, external, tensor.rest)
            write.write(values)
        return file.serialize(), write.tell()


def _facts(request: ModelRequest, served: Served, graph: Graph, card: ModelCard, *, graph_nbytes: int) -> NativeModel:
    """Return a model's sizes, without its files."""
    entry = request.entry
    sizes = measured_sizes(served.rewritten.data, hidden=entry.hidden_size)
    footprint = plan_own_footprint(
        entry,
        sizes,
        graph_nbytes=graph_nbytes,
        tiles_nbytes=served.nbytes,
        scratch_nbytes=served.scratch_nbytes,
        adapters="lora" in graph.capabilities,
    )
    loaded, workspace = footprint.loaded(request.name)
    thread = thread_nbytes(entry, footprint.rows_per_pass)
    return NativeModel(
        graph="",
        weights="",
        tiles={},
        given={},
        rows=card.rows,
        vocabulary_size=card.vocabulary_size,
        context=card.context,
        hidden=entry.hidden_size,
        head=False,
        kv_type=card.kv_type,
        rows_per_pass=footprint.rows_per_pass,
        logits_copies=footprint.logits_copies,
        memory=NativeMemory(
            loaded.nbytes,
            workspace.nbytes - THREADS * thread,
            thread,
            footprint.arena_nbytes(logits_row_nbytes=4 * entry.rows),
        ),
        caches=[NativeCache(each.name, each.heads, each.size) for each in footprint.caches],
        recurrent=[NativeRecurrent(each.name, each.values, each.width) for each in footprint.recurrent],
        features=served.features,
    )
