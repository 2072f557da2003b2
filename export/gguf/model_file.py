"""Writes a model as a GGUF file, or as a plan from which the file is built on first use."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.gguf.architectures import ALL, ARCHITECTURES, MAMBA2, Architecture
from edgedecode.pack.manifest import Generation

from ..base_model import Source
from ..graph.drawing import WEIGHTS_FILE
from ..graph.network import Windows
from ..graph.recipe import Recipe
from ..graph.weights_file import Weights
from .network_metadata import check_network, query_factor, window_notes, write_metadata
from .network_tensors import tensors_of
from .plan import make_plan, vectors_in
from .rotation import Rotation, read_rotation
from .row_source import StoredRows, kind_of
from .specials import Specials, file_name, read_specials, write_vocabulary
from .tensors import fields_of, write_file
from .tokenizer_check import Reading, check_reading
from .vocabulary import read_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GGUF_FILE = "model.gguf"


@dataclass(frozen=True, slots=True)
class GgufRequest:
    """Settings of a GGUF file."""

    generation: Generation
    chat_template: str | None
    planned: bool = False
    """Write only a plan, from which the file is built on first use."""


def check_gguf(request: GgufRequest, source: Source, recipe: Recipe) -> None:
    """Run the checks that need no weights: GGUF types for the recipe, and a tokenizer that llama.cpp supports.

    Raises ExportError, or RuntimeUnavailable if a package is missing.
    """
    if find_spec("gguf") is None:
        raise RuntimeUnavailable("GGUF files need the gguf package, not installed: pip install 'edgedecode[export]'")
    if request.planned and not (recipe.body.quantized and recipe.head.quantized):
        raise ExportError("a GGUF file is built from quantized blocks, but this recipe keeps floats")
    for scheme in (recipe.body, recipe.head):
        kind_of(scheme)
    inner = _tokenizer(source)
    read_vocabulary(inner, rows=source.shape.rows, name=source.name)
    _specials(inner, request, source)


def check_gguf_network(source: Source, network: "PreTrainedModel") -> Rotation:
    """Return the network's RoPE parameters. Raises ExportError if llama.cpp would compute the network differently."""
    layout = _layout(source, network)
    rotation = read_rotation(network, layout)
    check_network(network, source.shape, layout, rotation)
    return rotation


class GgufFile:
    """The content of a model's file: keys, tensors and tokenizer.

    stored: the pack's weights. recipe: that of a model without graphs, whose floats are not stored.

    Raises ExportError if llama.cpp does not support the model or the tokenizer.
    """

    def __init__(
        self,
        request: GgufRequest,
        source: Source,
        network: "PreTrainedModel",
        *,
        windows: Windows,
        stored: StoredRows,
        recipe: Recipe | None = None,
    ) -> None:
        import gguf

        shape, layout = source.shape, _layout(source, network)
        self._rows, self._inner = shape.rows, _tokenizer(source)
        self._vocabulary = read_vocabulary(self._inner, rows=shape.rows, name=source.name)
        specials, rotation = _specials(self._inner, request, source), check_gguf_network(source, network)
        tensors = tensors_of(
            network,
            shape=shape,
            layout=layout,
            rotation=rotation,
            stored=stored,
            recipe=recipe,
            query_factor=query_factor(network, shape, layout),
        )
        self._tensors = [*tensors]
        self._writer = gguf.GGUFWriter(None, layout.name)
        kinds = [tensor.kind for tensor in self._tensors if tensor.name.startswith("blk.") and len(tensor.shape) > 1]
        main = max(sorted(set(kinds)), key=kinds.count)
        self._writer.add_type(gguf.GGUFType.MODEL)
        self._writer.add_name(file_name(source.name, self._inner))
        self._writer.add_license(source.license)
        write_metadata(self._writer, network, shape=shape, layout=layout, rotation=rotation, windows=windows, kind=main)
        write_vocabulary(self._writer, self._vocabulary, specials, chat_template=request.chat_template)
        limits = window_notes(windows, layout, context=network.config.max_position_embeddings)
        self._notes = (*limits, *specials.notes, *self._vocabulary.notes)

    def write(self, path: Path, *, progress: Callable[[int], None], release: Callable[[], None]) -> Reading:
        """Write the file; return how llama.cpp reads texts with it. Raises ExportError if it reads them differently."""
        write_file(path, fields_of(self._writer), self._tensors, progress=progress, release=release)
        reading = check_reading(path, self._inner, self._vocabulary, whole=True)
        return replace(reading, notes=(*self._notes, *reading.notes))

    def write_plan(self, path: Path, weights: Weights, file: Path) -> None:
        """Write a plan, from which the same file can be built without the network. weights, file: of the pack.

        Raises ExportError if a tensor is not stored in blocks.
        """
        plan = make_plan(self._writer, self._tensors, rows=self._rows, vectors=vectors_in(weights, file))
        path.write_text(plan.to_json(), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class FileDrawing:
    """A model's GGUF file whose weights are planned but not written yet; what `Drawing` is for a graph."""

    weights: Weights
    content: Callable[..., GgufFile]
    """Makes the content for the weights `stored`."""

    def write_weights(self, folder: Path, *, progress: Callable[[int], None], release: Callable[[], None]) -> None:
        """Write the rounded weights, which the file is made from."""
        self.weights.write(folder / WEIGHTS_FILE, progress=progress, release=release)

    def write_graph(
        self,
        folder: Path,
        *,
        progress: Callable[[int], None] = lambda amount: None,
        release: Callable[[], None] = lambda: None,
    ) -> Reading:
        """Write the file next to the weights; see `GgufFile.write`."""
        content = self.content(stored=StoredRows(self.weights, folder / WEIGHTS_FILE))
        return content.write(folder / GGUF_FILE, progress=progress, release=release)


def _layout(source: Source, network: "PreTrainedModel") -> Architecture:
    """Return the record of a network; a Granite 4 without Mamba-2 is llama.cpp's granite."""
    layout = ALL[source.shape.architecture]
    if layout.recurrent == MAMBA2 and not any("mamba." in name for name, _ in network.named_parameters()):
        return ARCHITECTURES["GraniteForCausalLM"]
    return layout


def _specials(inner: tokenizers.Tokenizer, request: GgufRequest, source: Source) -> Specials:
    beginning, padding = source.config.bos_token_id, source.config.pad_token_id
    return read_specials(inner, request.generation, name=source.name, beginning=beginning, padding=padding)


def _tokenizer(source: Source) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(source.folder / "tokenizer.json"))
