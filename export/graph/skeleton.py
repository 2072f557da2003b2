"""Builds the base graph's structure with onnxruntime-genai's model builder, without reading or copying weights.

The builder gets a model whose parameters are views of the checkpoint; initializers are only recorded, as name and view.
The builder's output is logged at debug level.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from edgedecode.errors import ExportError

from ..frameworks import reason_of
from .network import FULL, SLIDING, per_layer_rotary, rotary_tables
from .weight_bytes import Recorded, Stacked, StackedT

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A graph whose initializers have no data, and the views to read the data from."""

    model: ir.Model
    recorded: Mapping[str, Recorded]


def build_skeleton(network: PreTrainedModel, builder: str, *, packed: Callable[[int], bool]) -> Skeleton:
    """Build the graph of `network`, whose parameters are views, with the builder class named `builder`.

    packed: whether query, key and value of a layer are one product, if the architecture allows it.
    """
    import onnx_ir as ir

    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            config = _builder_config(network)
            recorder = _recording(builder)(config, ir.DataType.FLOAT, ir.DataType.FLOAT, "cpu", None, {})
            recorder.network, recorder.packed = network, packed
            _exact_scale(recorder, network)
            recorder.make_model("")
    except Exception as error:  # the builder and the transformers code it runs may raise anything
        what = f"onnxruntime-genai's builder cannot build this model: {type(error).__name__}: {reason_of(error)}"
        raise ExportError(what) from error
    finally:
        for line in printed.getvalue().splitlines():
            _log.debug("builder: %s", line)
    _drop_blank_inputs(recorder.model)
    return Skeleton(recorder.model, recorder.recorded)


@lru_cache
def _recording(builder: str) -> Any:  # noqa: ANN401  (the builder is untyped)
    """Return a subclass of the builder that records initializers instead of loading weights."""
    import onnx_ir as ir
    from onnx_ir.tensor_adapters import TorchTensor

    class Recording(getattr(_builders(), builder)):  # type: ignore[misc]
        network: PreTrainedModel
        packed: Callable[[int], bool]
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
            value.const_value = ir.LazyTensor(_no_data, dtype=kind, shape=ir.Shape(tensor.shape), name=name)
            self.model.graph.register_initializer(value)

        def is_qkv_projection_packable(self, layer_id: int, attention: torch.nn.Module) -> bool:
            self.attention_attrs |= {"k_path": "", "v_path": ""}  # the builder would keep those of the layer before
            return self.packed(layer_id)

        def make_packed_matmul_float_class(
            self, query: torch.nn.Linear, key: torch.nn.Linear, value: torch.nn.Linear
        ) -> _Packed:
            return _Packed(Stacked((query.weight, key.weight, value.weight)))

        def make_attention_unpacked_regular(
            self, layer_id: int, attention: torch.nn.Module, qkv_linear: torch.nn.Linear, root_input: str, **_: object
        ) -> None:
            """Attach the three projections as views; the builder would copy them into new modules."""
            sizes = (self.q_size, self.kv_size, self.kv_size)
            _attach(attention, ("q_proj", "k_proj", "v_proj"), _rows_of(qkv_linear, sizes))

        def make_mlp_unpacked_regular(
            self, layer_id: int, mlp: torch.nn.Module, gate_up_linear: torch.nn.Linear, root_input: str
        ) -> None:
            sizes = (self.intermediate_size, self.intermediate_size)
            _attach(mlp, ("gate_proj", "up_proj"), _rows_of(gate_up_linear, sizes))

        def make_attention_qk_rope(self, layer_id: int, **more: object) -> tuple[str, str]:
            """Skip layers without rotary positions (SmolLM3): the builder would rotate them before attention."""
            if not self.attention_attrs["use_rope_in_attn"]:
                return "", ""
            names: tuple[str, str] = super().make_attention_qk_rope(layer_id, **more)
            return names

        def make_rope_init(self, config: PreTrainedConfig) -> None:
            """Do nothing: the tables are computed by transformers, see below."""

        def make_rotary_embedding_multi_cache(self, **_: object) -> None:
            """Do nothing: the tables of a layer type are added with its first layer."""

        def make_rotary_embedding_caches(self, **_: object) -> tuple[str, str]:
            local = self.window_size not in (None, -1)  # set layer by layer
            kind = (SLIDING if local else FULL) if per_layer_rotary(self.network) else None
            names = [f"{part}_cache" + (f"_{kind}" if kind else "") for part in ("cos", "sin")]
            if names[0] not in self.recorded:
                tables = rotary_tables(self.network, length=self.rope_attrs["cache_length"], kind=kind)
                self.make_initializer(tables.cosine, names[0])
                self.make_initializer(tables.sine, names[1])
            return names[0], names[1]

    return Recording


def _drop_blank_inputs(model: ir.Model) -> None:
    """Remove inputs that the builder marked as absent by an empty name."""
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == "":
                node.replace_input_with(index, None)


def _attach(module: torch.nn.Module, names: Sequence[str], parts: Sequence[SimpleNamespace]) -> None:
    """Attach parts as plain attributes: submodules would add to the module's parameters."""
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(module, name, part)


@dataclass(frozen=True, slots=True)
class _Packed:
    weight: Stacked


def _no_data() -> ir.TensorProtocol:
    raise AssertionError("weights of the skeleton are read from the checkpoint, never through the graph")


def _builder_config(network: PreTrainedModel) -> Any:  # noqa: ANN401  (the builder adds attributes to it)
    """Copy the configuration and add the older attributes that the builder still expects."""
    config: Any = copy.deepcopy(network.config)
    if not hasattr(config, "rope_local_base_freq"):
        config.rope_local_base_freq = 0.0  # not used: the tables are computed by transformers
    return config


def _exact_scale(recorder: Any, network: PreTrainedModel) -> None:  # noqa: ANN401  (the builder is untyped)
    """Set the embedding's scale from the network, because the builder rounds it to two decimals."""
    scale = getattr(network.get_input_embeddings(), "scalar_embed_scale", None)
    if scale is not None:
        recorder.embed_attrs["scale"] = float(scale)


def _rows_of(linear: torch.nn.Linear, sizes: Sequence[int]) -> list[SimpleNamespace]:
    """Split a fused projection into views with `sizes` rows."""
    biases = linear.bias.split(list(sizes)) if linear.bias is not None else (None,) * len(sizes)
    weights = linear.weight.split(list(sizes))
    return [SimpleNamespace(weight=weight, bias=bias) for weight, bias in zip(weights, biases, strict=True)]


@lru_cache
def _builders() -> Any:  # noqa: ANN401  (the builder is untyped)
    """Import the builder's package, whose modules import each other as top-level names."""
    genai = importlib.import_module("onnxruntime_genai")
    folder = str(Path(genai.__path__[0]) / "models")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("builders")
    finally:
        sys.path.remove(folder)
