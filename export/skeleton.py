"""The base graph's structure, made by onnxruntime-genai's model builder without any weight being read or copied.

The builder's classes get a model whose parameters are views of the checkpoint, and an initializer is only noted down:
name and view. What the builder prints is kept and shown with --debug.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError

from .frameworks import reason_of
from .sources import Recorded, Stacked, StackedT

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

__all__ = ["Skeleton", "build_skeleton"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A graph whose initializers have no data, and the views that the data will be read from."""

    model: ir.Model
    recorded: Mapping[str, Recorded]


def build_skeleton(network: PreTrainedModel, builder: str) -> Skeleton:
    """Build the graph of `network`, whose parameters are views, with the builder class named `builder`."""
    import onnx_ir as ir

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            maker = _recording(builder)(network.config, ir.DataType.FLOAT, ir.DataType.FLOAT, "cpu", None, {})
            maker.network = network
            maker.make_model("")
    except Exception as error:  # the builder is untyped code, and runs transformers' own
        what = f"onnxruntime-genai's builder cannot make this model: {type(error).__name__}: {reason_of(error)}"
        raise ExportError(what) from error
    finally:
        for line in printed.getvalue().splitlines():
            _log.debug("builder: %s", line)
    _leave_out_blanks(maker.model)
    return Skeleton(maker.model, maker.recorded)


@lru_cache
def _recording(builder: str) -> Any:  # noqa: ANN401  (the builder is untyped)
    """Return the builder's class with loading and initializers replaced by records."""
    import onnx_ir as ir
    from onnx_ir.tensor_adapters import TorchTensor

    class Recording(getattr(_builders(), builder)):  # type: ignore[misc]
        network: PreTrainedModel
        recorded: dict[str, Recorded]

        def load_weights(self, input_path: str) -> PreTrainedModel:
            self.recorded = {}
            return self.network

        def make_initializer(
            self, tensor: Recorded, /, name: str, *, to: ir.DataType | None = None, raw: bool = False
        ) -> None:
            assert not raw
            self.recorded[name] = tensor if isinstance(tensor, StackedT) else tensor.detach()
            kind = to or TorchTensor(tensor).dtype
            value = self.make_value(name, kind, tuple(tensor.shape))
            value.const_value = ir.LazyTensor(_unread, dtype=kind, shape=ir.Shape(tensor.shape), name=name)
            self.model.graph.register_initializer(value)

        def make_packed_matmul_float_class(
            self, query: torch.nn.Linear, key: torch.nn.Linear, value: torch.nn.Linear
        ) -> _Packed:
            return _Packed(Stacked((query.weight, key.weight, value.weight)))

        def make_rope_init(self, config: PreTrainedConfig) -> None:
            """Nothing: the tables below are transformers' own, whatever the kind."""

        def make_rotary_embedding_caches_from_scratch(self) -> tuple[torch.Tensor, torch.Tensor]:
            return _rotary_tables(self.network, self.rope_attrs["cache_length"])

    return Recording


def _leave_out_blanks(model: ir.Model) -> None:
    """Make inputs that the builder left blank by an empty name really absent."""
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == "":
                node.replace_input_with(index, None)


@dataclass(frozen=True, slots=True)
class _Packed:
    weight: Stacked


def _unread() -> ir.TensorProtocol:
    raise AssertionError("a weight of the skeleton is read by its recipe, never through the graph")


def _rotary_tables(network: PreTrainedModel, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the cosine and sine tables, [length, rotary size], with the model's own rotary module."""
    import torch

    rotary: Any = network.model.rotary_emb
    with torch.no_grad():
        cosine, sine = rotary(torch.zeros(1, dtype=torch.float32), torch.arange(length)[None])
    return cosine[0], sine[0]


@lru_cache
def _builders() -> Any:  # noqa: ANN401  (the builder is untyped)
    """Import the builder's package, whose modules import each other by bare names."""
    genai = importlib.import_module("onnxruntime_genai")
    folder = str(Path(genai.__path__[0]) / "models")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("builders")
    finally:
        sys.path.remove(folder)
