"""Reads a LoRA adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

It adds up · down · scale to each projection's weight, where the scale is alpha / rank, or alpha / √rank (rsLoRA).
Patterns override the rank or alpha of single projections. Activated LoRA (aLoRA) applies from the last occurrence of
its invocation tokens on.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LowRank
from edgedecode.errors import ManifestError
from edgedecode.typed_json import described

from .safetensors_file import SafetensorsFile

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MOST_CONFIG_NBYTES = 1 << 20
_NAME = re.compile(
    r"base_model\.model\.(?P<module>model\.layers\.(?P<layer>\d+)\..+\.(?P<last>\w+))\.lora_(?P<side>[AB])\.weight"
)
_PLAIN = re.compile(r"[\w.]+")
_REFUSED = ("use_dora", "fan_in_fan_out", "modules_to_save", "layer_replication", "lora_bias", "use_qalora")
"""Options of LoRA that do more than add a product of two matrices."""
_KEEP_BASE = ("gaussian", "eva", "orthogonal")
"""Initializations, besides true and false, that leave the base model's weights as they are. The others (PiSSA, OLoRA,
CorDA, LoftQ) change them, so the adapter belongs to other weights."""
_Positive = Annotated[int, msgspec.Meta(ge=1, le=65536)]
_Token = Annotated[int, msgspec.Meta(ge=0)]


class _Config(msgspec.Struct):
    """The fields of the configuration that are used."""

    peft_type: str
    r: _Positive
    lora_alpha: float | None = None
    use_rslora: bool | None = None
    rank_pattern: dict[str, _Positive] | None = None
    alpha_pattern: dict[str, float] | None = None
    alora_invocation_tokens: list[_Token] | None = None
    init_lora_weights: bool | str | None = None

    def rank(self, module: str) -> int:
        return int(_matching(self.rank_pattern, module, usual=self.r))

    def scale(self, module: str) -> float:
        """Return the factor of a module's product."""
        rank = self.rank(module)
        alpha = _matching(self.alpha_pattern, module, usual=8.0 if self.lora_alpha is None else self.lora_alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


class _TensorFile(Protocol):
    """The tensors of a file by name, as float32."""

    @property
    def path(self) -> Path: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def array(self, name: str) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """One adapter, whose matrices are read on demand.

    rank: the largest of its projections. modules: the projections it changes, by their names in PEFT's
    `target_modules`. invocation: the tokens that activate it; empty: it is always active.
    """

    rank: int
    alpha: float
    modules: tuple[str, ...]
    invocation: tuple[int, ...]
    _file: _TensorFile = field(repr=False)
    _scales: Mapping[tuple[int, str], tuple[str, str, float]] = field(repr=False)
    """By layer and module: the names of the two tensors, and the product's scale."""

    @property
    def values(self) -> int:
        """Number of values in its matrices."""
        return sum(math.prod(self._file.shape(name)) for both in self._scales.values() for name in both[:2])

    @property
    def tensors(self) -> int:
        return 2 * len(self._scales)

    def matrices(self) -> list[LowRank]:
        """Return each projection's change, with the scale in its second matrix.

        The file is read when a matrix is used, which raises ManifestError for values that are not finite.
        """
        return [
            _Stored(layer, module, _Values(self._file, down), _Values(self._file, up, scale))
            for (layer, module), (down, up, scale) in self._scales.items()
        ]

    def check_values(self) -> None:
        """Raise ManifestError for values that are not finite."""
        for down, up, scale in self._scales.values():
            _Values(self._file, down).read()
            _Values(self._file, up, scale).read()


@dataclass(frozen=True, slots=True)
class _Values:
    """A tensor of a file, times `scale`; its rows from `start` to `stop`."""

    file: _TensorFile
    name: str
    scale: float = 1.0
    start: int = 0
    stop: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *others = self.file.shape(self.name)
        return len(range(rows)[self.start : self.stop]), *others

    def read(self) -> FloatArray:
        values = self.file.array(self.name)[self.start : self.stop]
        if self.scale != 1.0:
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * np.float32(self.scale)
        if not np.isfinite(values).all():
            raise ManifestError(
                f"{self.file.path} has values in {self.name} that are not finite numbers, or too large ones for the "
                f"scale of {self.scale:g}: save the adapter again"
            )
        return values


class _Stored(LowRank):
    """Reads its matrices each time that they are used, so that only those of one projection are in memory."""

    __slots__ = ("_down", "_up")
    _down: _Values
    _up: _Values

    def __init__(self, layer: int, module: str, down: _Values, up: _Values) -> None:
        for name, value in {"layer": layer, "module": module, "_down": down, "_up": up}.items():
            object.__setattr__(self, name, value)

    @property
    def down(self) -> FloatArray:
        return self._down.read()

    @property
    def up(self) -> FloatArray:
        return self._up.read()

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self._down.shape, self._up.shape

    def piece(self, module: str, start: int, stop: int) -> LowRank:
        return _Stored(self.layer, module, self._down, replace(self._up, start=start, stop=stop))


def read_peft_adapter(config: Path, weights: Path) -> PeftAdapter:
    """Read an adapter saved by PEFT. Raises ManifestError for another kind of adapter or a file that cannot be used."""
    settings = _read_config(config)
    file = SafetensorsFile.open(weights)
    sides: dict[tuple[int, str], dict[str, str]] = {}
    modules: dict[tuple[int, str], str] = {}
    for name in sorted(file.tensors):
        found = _NAME.fullmatch(name)
        if found is None:
            raise ManifestError(
                f"the adapter {weights.parent.name} changes {name}: only projections in a model's layers are supported"
            )
        place = int(found["layer"]), found["last"]
        if modules.setdefault(place, found["module"]) != found["module"]:
            raise ManifestError(f"the adapter {weights.parent.name} changes two modules {place[1]} of layer {place[0]}")
        sides.setdefault(place, {})[found["side"]] = name
    if not sides:
        raise ManifestError(f"{weights} contains no LoRA matrices: save the adapter again")
    scales, rank = {}, 0
    for place, both in sorted(sides.items()):
        shapes = [file.shape(both[side]) if side in both else () for side in "AB"]
        if any(len(shape) != 2 for shape in shapes) or shapes[0][0] != shapes[1][1] or shapes[0][0] < 1:
            raise ManifestError(f"{weights} has no matching matrices for layer {place[0]} {place[1]}: save it again")
        if shapes[0][0] != (wanted := settings.rank(modules[place])):
            raise ManifestError(
                f"{weights} has matrices of rank {shapes[0][0]} for layer {place[0]} {place[1]}, but {config.name} "
                f"gives rank {wanted}: save the adapter again"
            )
        rank = max(rank, wanted)
        scales[place] = both["A"], both["B"], settings.scale(modules[place])
    if bad := [place for place, (_, _, scale) in scales.items() if not math.isfinite(scale)]:
        raise ManifestError(
            f"the scale of layer {bad[0][0]} {bad[0][1]} in {config} is not a number: save the adapter again"
        )
    return PeftAdapter(
        rank=rank,
        alpha=8.0 if settings.lora_alpha is None else settings.lora_alpha,
        modules=tuple(dict.fromkeys(module for _, module in scales)),
        invocation=tuple(settings.alora_invocation_tokens or ()),
        _file=file,
        _scales=scales,
    )


def _read_config(path: Path) -> _Config:
    name = path.parent.name
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MOST_CONFIG_NBYTES))
        kind = value.get("peft_type")
        if kind != "LORA":
            raise ManifestError(f"the adapter {name} is of type {kind}: only LORA is supported")
        if used := [key for key in _REFUSED if value.get(key)]:
            raise ManifestError(
                f"the adapter {name} uses {', '.join(used)}, which is not supported: merge it into its base"
            )
        config = msgspec.convert(value, described(_Config), strict=False)
        start = config.init_lora_weights
        if isinstance(start, str) and start.lower() not in _KEEP_BASE:
            raise ManifestError(
                f"the adapter {name} was initialized with {start[:40]!r}, which changes the base model's weights too: "
                f"convert it to an ordinary LoRA when saving it (path_initial_model_for_weight_conversion)"
            )
    except OSError as error:
        raise ManifestError(f"{path} cannot be read ({error.strerror}): give the folder that PEFT saved") from None
    except (ValueError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise ManifestError(f"{path} is not a usable PEFT configuration ({error}): save the adapter again") from None
    for key in (*(config.rank_pattern or {}), *(config.alpha_pattern or {})):
        if not _PLAIN.fullmatch(key):  # matching an expression may never end
            raise ManifestError(f"{path} sets ranks or alphas by the expression {key!r}: only names are supported")
    return config


def _matching(pattern: Mapping[str, float] | None, module: str, *, usual: float) -> float:
    """Return the value of the first pattern that a module's name ends with, as PEFT matches names."""
    return next((value for key, value in (pattern or {}).items() if f".{module}".endswith(f".{key}")), usual)
