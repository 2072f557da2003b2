"""What a model ought to compute: transformers' own modules, carrying the weights that the pack stands for.

One decoder layer is materialised at a time and the head in rows, so that the memory never follows the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgedecode.types import FloatArray, LowRank

from .quantize import Scheme, dequantize, quantize
from .recipe import UNROUNDED, Recipe
from .sources import Matrix

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["Projection", "Reference"]


@dataclass(frozen=True, slots=True)
class Projection:
    """A weight matrix of a layer, by its module's name."""

    layer: int
    module: str
    inputs: int
    outputs: int


class Reference:
    """Computes logits of a whole text at once, from a network whose parameters are views of a checkpoint."""

    def __init__(
        self,
        network: PreTrainedModel,
        recipe: Recipe,
        *,
        release: Callable[[], None],
        deltas: Sequence[LowRank] = (),
    ) -> None:
        self._network = network
        self._recipe = recipe
        self._release = release
        self._deltas = {f"{delta.layer}.{delta.module}": delta for delta in deltas}

    def of_originals(self) -> Reference:
        """Return the reference that carries the checkpoint's own weights."""
        return Reference(self._network, UNROUNDED, release=self._release)

    def with_deltas(self, deltas: Sequence[LowRank]) -> Reference:
        """Return the reference that carries these deltas on its weights."""
        return Reference(self._network, self._recipe, release=self._release, deltas=deltas)

    def projections(self, modules: Collection[str]) -> Iterator[Projection]:
        """Name every layer's projections among `modules`, with their sizes."""
        body: Any = self._network.model
        for layer, block in enumerate(body.layers):
            for path, part in block.named_modules():
                module = path.rpartition(".")[2]
                if module in modules and part.weight.dim() == 2:
                    outputs, inputs = part.weight.shape
                    yield Projection(layer, module, inputs, outputs)

    def logits(self, tokens: Sequence[int], *, visible: npt.NDArray[np.bool_], positions: Sequence[int]) -> FloatArray:
        """Return float32 [tokens, rows]. visible[i, j] says whether token i sees token j (itself included)."""
        return self._head(self.hidden(tokens, visible=visible, positions=positions))

    def hidden(self, tokens: Sequence[int], *, visible: npt.NDArray[np.bool_], positions: Sequence[int]) -> FloatArray:
        """Return the last hidden state, which the head reads: float32 [tokens, hidden size]."""
        import torch

        with torch.inference_mode(), self._layers_on_demand():
            mask = torch.from_numpy(np.where(visible, np.float32(0), np.finfo(np.float32).min))[None, None]
            output = self._network.model(
                inputs_embeds=self._embed(tokens),
                attention_mask=mask,
                position_ids=torch.tensor([positions]),
                use_cache=False,
            )
            return np.asarray(output.last_hidden_state[0].numpy())

    def _embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Run the embedding module on a table that holds only the rows in use."""
        import torch

        embedding = self._network.get_input_embeddings()
        used, where = np.unique(np.asarray(tokens), return_inverse=True)
        table = embedding.weight[torch.from_numpy(used)]
        with _weights(embedding, {"weight": _as_stored(table, self._recipe.head)}):
            hidden = embedding(torch.from_numpy(where)[None])
        self._release()
        return hidden

    def _head(self, states: FloatArray) -> FloatArray:
        weight = self._network.get_output_embeddings().weight
        result = np.empty((states.shape[0], weight.shape[0]), np.float32)
        for chunk in Matrix((weight,)).chunks():
            rows = _rounded(chunk.values, self._recipe.head)
            result[:, chunk.start : chunk.start + len(rows)] = states @ rows.T
            self._release()
        return result

    @contextmanager
    def _layers_on_demand(self) -> Iterator[None]:
        """Give each module with weights its own just before it runs, and take them away just after."""
        body: Any = self._network.model
        with ExitStack() as hooks:
            for layer, module in enumerate((*body.layers, body.norm)):
                held = ExitStack()
                hooks.callback(held.close)
                hooks.callback(module.register_forward_pre_hook(self._materialise(held, layer)).remove)
                hooks.callback(module.register_forward_hook(self._drop(held)).remove)
            yield

    def _materialise(self, held: ExitStack, layer: int) -> Callable[[torch.nn.Module, object], None]:
        def before(module: torch.nn.Module, _: object) -> None:
            for path, part in module.named_modules():
                stored = {
                    name: _as_stored(value, self._recipe.body) for name, value in part.named_parameters(recurse=False)
                }
                if delta := self._deltas.get(f"{layer}.{path.rpartition('.')[2]}"):
                    stored["weight"] = stored["weight"] + _tensor(delta.product())
                held.enter_context(_weights(part, stored))
                self._release()

        return before

    def _drop(self, held: ExitStack) -> Callable[[torch.nn.Module, object, object], None]:
        def after(module: torch.nn.Module, arguments: object, output: object) -> None:
            held.close()

        return after


@contextmanager
def _weights(module: torch.nn.Module, values: dict[str, torch.Tensor]) -> Iterator[None]:
    """Swap a module's own parameters for the time of a call."""
    import torch

    kept = {name: module._parameters[name] for name in values}
    try:
        for name, value in values.items():
            module._parameters[name] = torch.nn.Parameter(value, requires_grad=False)
        yield
    finally:
        module._parameters.update(kept)


def _as_stored(view: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Return a parameter as the pack stands for it: matrices by their scheme, vectors in float32."""
    import torch

    values = view.detach().float()
    return torch.from_numpy(_rounded(values.numpy(), scheme)) if view.dim() == 2 else values


def _rounded(values: FloatArray, scheme: Scheme) -> FloatArray:
    if scheme.quantized:
        return dequantize(quantize(values, scheme), scheme)
    return values.astype(np.float16).astype(np.float32) if scheme.bits == 16 else values


def _tensor(values: FloatArray) -> torch.Tensor:
    import torch

    return torch.from_numpy(values)
