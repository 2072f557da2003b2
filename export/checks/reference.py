"""The reference for checking a model: transformers' modules with the pack's rounded weights.

Layers are materialised one at a time and the head in chunks of rows, so memory does not grow with the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LowRank
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ALL

from ..gguf.row_source import BlockRows, StoredRows
from ..graph.network import FULL, SLIDING, Windows
from ..graph.quantize import Scheme, dequantize, quantize
from ..graph.recipe import UNROUNDED, Recipe
from ..graph.weight_bytes import Matrix

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_FARTHEST = 0.5
"""Largest distance of rounded weights from the original ones, as a share of their norm; 4 bits cause 0.1 to 0.2."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A layer's weight matrix, with its module's name."""

    layer: int
    module: str
    inputs: int
    outputs: int


class Reference:
    """Computes a text's logits in one pass, with a network whose parameters are views of a checkpoint."""

    def __init__(
        self, network: PreTrainedModel, recipe: Recipe, *, release: Callable[[], None], windows: Windows | None = None
    ) -> None:
        self.network = network
        self._recipe = recipe
        self._release = release
        self._windows = windows
        self._stored: StoredRows | None = None
        self._deltas: Mapping[str, LowRank] = {}

    @property
    def recurrent(self) -> bool:
        """Whether layers have a state, which no mask keeps from the texts of a pass."""
        return bool(ALL[type(self.network).__name__].recurrent)

    def of_originals(self) -> Reference:
        """Return a reference with the checkpoint's original weights."""
        return self._with(_recipe=UNROUNDED, _stored=None, _deltas={})

    def rounding(self, recipe: Recipe) -> Reference:
        """Return a reference with weights rounded as `recipe` says."""
        return self._with(_recipe=recipe)

    def reading(self, stored: StoredRows) -> Reference:
        """Return a reference that reads 4-bit weights from a pack's file: their rounding by a text is not repeated."""
        return self._with(_stored=stored)

    def narrowed(self, window: int) -> Reference:
        """Return a reference whose windowed layers see at most `window` positions."""
        return self._with(_windows=self._windows and self._windows.narrowed(window))

    def with_deltas(self, deltas: Sequence[LowRank]) -> Reference:
        """Return a reference with these deltas added to its weights."""
        return self._with(_deltas={f"model.layers.{delta.layer}.{delta.module}": delta for delta in deltas})

    def _with(self, **changes: object) -> Reference:
        other = copy(self)
        vars(other).update(changes)
        return other

    def projections(self, modules: Collection[str]) -> Iterator[Projection]:
        """Yield every layer's projections among `modules`, with their sizes."""
        body: Any = self.network.model
        for layer, block in enumerate(body.layers):
            for path, part in block.named_modules():
                module = path.rpartition(".")[2]
                if module in modules and part.weight.dim() == 2:
                    outputs, inputs = part.weight.shape
                    yield Projection(layer, module, inputs, outputs)

    def rounds(self, module: str) -> bool:
        """Return whether a module's (or HEAD's) weight is quantized, so that a graph also rounds its activations."""
        return self._recipe.scheme_of(module).quantized

    def logits(self, tokens: Sequence[int], *, visible: npt.NDArray[np.bool_], positions: Sequence[int]) -> FloatArray:
        """Return float32 [tokens, rows]. visible[i, j]: token i sees token j, including itself."""
        parts = self.head(self.hidden(tokens, visible=visible, positions=positions))
        return np.concatenate([part for _, part in parts], axis=1)

    def hidden(self, tokens: Sequence[int], *, visible: npt.NDArray[np.bool_], positions: Sequence[int]) -> FloatArray:
        """Return the last hidden state, the head's input: float32 [tokens, hidden size]."""
        import torch

        with torch.no_grad(), self._layers_on_demand():
            body: Any = self.network.model
            more = {}
            if (table := getattr(body, "embed_tokens_per_layer", None)) is not None:  # Gemma 4
                rows = self._embed(tokens, table, self._recipe.scheme_of("embed_tokens_per_layer"))
                more = {"per_layer_inputs": rows.unflatten(-1, (len(body.layers), -1))}
            output = body(
                inputs_embeds=self._embed(tokens, self.network.get_input_embeddings(), self._recipe.head),
                attention_mask=self._masks(visible, np.asarray(positions, np.int64)),
                position_ids=torch.tensor([positions]),
                use_cache=False,
                **more,
            )
            return np.asarray(output.last_hidden_state[0].numpy())

    def backward(
        self, tokens: Sequence[int], gradient: FloatArray, *, visible: npt.NDArray[np.bool_], positions: Sequence[int]
    ) -> None:
        """Run a gradient of the last hidden state, float32 [tokens, hidden size], back through the layers for hooks.

        Of the forward pass only the layers' inputs are kept, and each layer is run again.
        """
        import torch

        body: Any = self.network.model
        calls: list[tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        with ExitStack() as hooks:
            for module in (*body.layers, getattr(body, "norm", None) or body.embedding_norm):  # LFM2's name
                hook = module.register_forward_pre_hook(lambda *call: calls.append(call), with_kwargs=True)
                hooks.callback(hook.remove)
            self.hidden(tokens, visible=visible, positions=positions)
        behind = torch.from_numpy(gradient)[None]
        shared: Any = calls[0][2].get("shared_kv_states", {})  # Gemma 4's later layers read those of earlier ones
        read = {kind: [each.requires_grad_() for each in pair] for kind, pair in shared.items()}
        owed = {kind: [torch.zeros_like(each) for each in pair] for kind, pair in read.items()}
        with torch.enable_grad(), self._layers_on_demand():
            for module, (states, *more), named in reversed(calls):
                states = states.detach().requires_grad_()
                shared.update(read)
                outputs, given = [module(states, *more, **named)], [behind]
                for kind in [kind for kind in read if shared[kind] is not read[kind]]:  # this layer's own
                    outputs, given = [*outputs, *shared[kind]], [*given, *owed.pop(kind)]
                inputs = [states, *(each for kind in owed for each in read[kind])]
                behind, *parts = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
                for total, part in zip((each for pair in owed.values() for each in pair), parts, strict=True):
                    total += 0 if part is None else part

    def _masks(
        self, visible: npt.NDArray[np.bool_], positions: npt.NDArray[np.int64]
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the additive mask, or one per layer type if the network distinguishes them."""
        windows = self._windows
        if windows is None or not windows.size:
            return _additive(visible)
        narrow = _additive(windows.visible(visible, positions))
        return narrow if all(windows.layers) else {FULL: _additive(visible), SLIDING: narrow}

    def _embed(self, tokens: Sequence[int], embedding: Any, scheme: Scheme) -> torch.Tensor:  # noqa: ANN401
        """Run an embedding module on a table of only the rows in use."""
        import torch

        used, where = np.unique(np.asarray(tokens), return_inverse=True)
        table = torch.from_numpy(self._rows(embedding.weight, used, scheme))
        with _weights(embedding, {"weight": table}):
            hidden: torch.Tensor = embedding(torch.from_numpy(where)[None])
        self._release()
        return hidden

    def head(self, states: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """Yield the logits of last hidden states in chunks: the first row's index, and float32 [states, chunk rows]."""
        weight = self.network.get_output_embeddings().weight
        for chunk in Matrix((weight,)).chunks():
            rows = self._rows(weight, range(chunk.start, chunk.start + len(chunk.values)), self._recipe.head)
            yield chunk.start, self._finished(np.asarray(states @ rows.T, np.float32))
            self._release()

    def _finished(self, logits: FloatArray) -> FloatArray:
        """Scale and cap the head's product as the architecture does (Granite, Gemma 2)."""
        config: Any = self.network.config
        logits /= getattr(config, "logits_scaling", None) or 1.0
        cap = getattr(config, "final_logit_softcapping", None)
        return np.asarray(np.tanh(logits / cap) * cap, np.float32) if cap else logits

    @contextmanager
    def _layers_on_demand(self) -> Iterator[None]:
        """Materialise each module's weights just before it runs, and drop them just after."""
        body: Any = self.network.model
        named = {f"model.layers.{index}": layer for index, layer in enumerate(body.layers)}
        named |= {
            f"model.{name}": module for name, module in body.named_children() if name.endswith(("norm", "projection"))
        }
        with ExitStack() as hooks:
            for name, module in named.items():
                held = ExitStack()
                hooks.callback(held.close)
                hooks.callback(module.register_forward_pre_hook(self._materialise(name, held)).remove)
                hooks.callback(module.register_forward_hook(self._drop(held)).remove)
            yield

    def _materialise(self, name: str, held: ExitStack) -> Callable[[torch.nn.Module, object], None]:
        def before(module: torch.nn.Module, _: object) -> None:
            for path, part in module.named_modules(prefix=name):
                scheme = self._recipe.scheme_of(path)
                stored = {own: self._as_stored(value, scheme) for own, value in part.named_parameters(recurse=False)}
                if delta := self._deltas.get(_place(path)):
                    stored["weight"] = stored["weight"] + _tensor(delta.product())
                held.enter_context(_weights(part, stored))
                self._release()

        return before

    def _as_stored(self, view: torch.Tensor, scheme: Scheme) -> torch.Tensor:
        """Return a parameter as in the pack: matrices rounded by `scheme`, vectors in float32."""
        import torch

        if view.dim() != 2:
            return view.detach().float()
        return torch.from_numpy(self._rows(view, range(len(view)), scheme))

    def _rows(self, view: torch.Tensor, rows: range | npt.NDArray[np.int64], scheme: Scheme) -> FloatArray:
        """Return rows of a matrix as in the pack, float32."""
        place = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        values = np.asarray(view.detach()[place].float().numpy(), np.float32)
        if self._stored is not None and scheme.bits == 4:
            found = self._stored.find(view)
            assert isinstance(found, BlockRows)
            runs = [(rows.start, rows.stop)] if isinstance(rows, range) else [(row, row + 1) for row in rows.tolist()]
            return _close(np.concatenate([found.floats(*run) for run in runs]), values)
        return _rounded(values, scheme)

    def _drop(self, held: ExitStack) -> Callable[[torch.nn.Module, object, object], None]:
        def after(module: torch.nn.Module, arguments: object, output: object) -> None:
            held.close()

        return after


@contextmanager
def _weights(module: torch.nn.Module, values: dict[str, torch.Tensor]) -> Iterator[None]:
    """Temporarily replace a module's own parameters."""
    import torch

    kept = {name: module._parameters[name] for name in values}
    try:
        for name, value in values.items():
            module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        module._parameters.update(kept)


def _additive(visible: npt.NDArray[np.bool_]) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.where(visible, np.float32(0), np.finfo(np.float32).min))[None, None]


def _rounded(values: FloatArray, scheme: Scheme) -> FloatArray:
    if scheme.quantized:
        return dequantize(quantize(values, scheme), scheme)
    return values.astype(np.float16).astype(np.float32) if scheme.bits == 16 else values


def _close(read: FloatArray, values: FloatArray) -> FloatArray:
    """Return rows read from a file, which the original ones check: a file that is wrong would be its own reference."""
    if not np.linalg.norm(read - values) <= _FARTHEST * np.linalg.norm(values):
        raise ExportError("the weights file has other weights than the model: export again, with --no-cache")
    return read


def _place(path: str) -> str:
    """Return a projection's layer and name, without the block in between."""
    return ".".join((*path.split(".")[:3], path.rpartition(".")[2]))


def _tensor(values: FloatArray) -> torch.Tensor:
    import torch

    return torch.from_numpy(values)
