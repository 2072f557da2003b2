"""The sampling options and their effects: from a row of logits to the weights of the tokens to sample from.

Weights are float32; the largest is 1. To add an option, add a function and a field here; fields are processed in their
order. Options that the native helper does not support are processed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, get_type_hints

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import InputError

from .masses import MASS_UNIT, damaged_logits, exponent_scale, largest, masses, total_mass, unnormalised
from .penalties import Bias, Marked, biases_of, checked_bias, frequent, present, repeated

Penalty = Callable[[FloatArray, FloatArray, float], FloatArray]
"""(logits of the tokens seen, how often each was generated, the option's value) → the penalised logits."""
Truncation = Callable[[FloatArray, float], npt.NDArray[np.bool_]]
"""(weights, at least one of them positive, the option's value) → a mask of the weights to keep, at least one."""
Floor = Callable[[FloatArray, float], np.float32]
"""(a row of logits after the penalties, the option's value) → the smallest logit to keep, at most the largest one."""


@dataclass(frozen=True, slots=True)
class SamplingOption:
    """A row of the table of options: its effect, its range, and its names on the command line and in files.

    The field's name in `SamplingOptions` is also the key in a pack, and in transformers' generation_config.json.
    """

    between: tuple[float, float]
    """Minimum and maximum; the value `off` is allowed too."""
    allowed: str
    """The allowed values in words, for messages."""
    flag: str
    """The command-line flag with the placeholder of its value."""
    help: str
    gguf: str = ""
    """The key in a GGUF file, after `general.sampling.`; empty: none."""
    penalise: Penalty | None = None
    """Changes the logits of tokens that occurred; None: no change."""
    least: Floor | None = None
    """Selects tokens by their logits in the full row, whatever the temperature; None: all."""
    keeps: Truncation | None = None
    """Selects the weights to keep, among those that earlier options kept; None: all."""
    name: str = ""
    """The field's name."""
    off: float = 0
    """The field's default, which disables the option."""

    @property
    def whole(self) -> bool:
        """Whether its values are integers."""
        return isinstance(self.off, int)

    def allows(self, value: float) -> bool:
        least, most = self.between
        return value == self.off or (math.isfinite(value) and least <= value <= most)


def kth_largest(logits: FloatArray, top_k: float) -> np.float32:
    """Return the k-th largest logit, with which ties are kept; the smallest if there are fewer."""
    place = max(0, len(logits) - int(top_k))
    return np.float32(np.partition(logits, place)[place])


def near_top(logits: FloatArray, sigmas: float) -> np.float32:
    """Return the largest logit minus `sigmas` standard deviations of the row (top-nσ, 2411.07641).

    Logits 1,000 below the largest do not count: a bias or a grammar excludes them.
    """
    top = float(logits.max())
    steps = np.rint((top - logits[logits > top - _FARTHEST].astype(np.float64)) * _STEPS).astype(np.int64)
    count, total, squares = len(steps), int(steps.sum()), int((steps * steps).sum())
    return np.float32(top - sigmas * math.sqrt(count * squares - total * total) / (count * _STEPS))


def nucleus(weights: FloatArray, top_p: float) -> npt.NDArray[np.bool_]:
    """Keep the smallest set of likeliest tokens whose share reaches `top_p`, and ties with the last of them."""
    return weights >= _nucleus_floor(weights, top_p)


def near_best(weights: FloatArray, min_p: float) -> npt.NDArray[np.bool_]:
    """Keep weights of at least `min_p` times the largest, which is 1 because top-p keeps it."""
    return weights >= np.float32(min_p)


_ABOVE_0 = math.ulp(0.0)
_FARTHEST, _STEPS = 1000, 2**12
"""Of `near_top`: distance of the logits that count, and steps per unit, whose squares add up to less than 2**63."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to sample a token. temperature 0 is greedy: the arg-max of the penalised row.

    The order of processing is logit_bias, the penalties in the order of the fields, top-k and top-nσ, temperature, then
    the options with `keeps` in the order of the fields. Raises InputError for values out of range.
    """

    temperature: Annotated[
        float,
        SamplingOption(
            (1e-6, 100.0),
            allowed="0 (greedy), or 0.000001 to 100",
            flag="--temp T",
            help="temperature; 0: greedy",
            gguf="temp",
        ),
    ] = 0.0
    top_k: Annotated[
        int,
        SamplingOption(
            (0, 2**31),
            allowed="0 (off) or more",
            flag="--top-k K",
            help="keep the K likeliest tokens; 0: off",
            gguf="top_k",
            least=kth_largest,
        ),
    ] = 0
    top_p: Annotated[
        float,
        SamplingOption(
            (_ABOVE_0, 1.0),
            allowed="above 0, up to 1 (off)",
            flag="--top-p P",
            help="keep the likeliest up to this mass; 1: off",
            gguf="top_p",
            keeps=nucleus,
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        SamplingOption(
            (0.0, 1.0),
            allowed="0 (off) to 1",
            flag="--min-p P",
            help="drop tokens below P times the likeliest; 0: off",
            gguf="min_p",
            keeps=near_best,
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        SamplingOption(
            (1e-6, 100.0),
            allowed="0.000001 to 100 (1 is off)",
            flag="--repeat-penalty X",
            help="divide the logits of tokens in prompt and answer; 1: off",
            gguf="penalty_repeat",
            penalise=repeated,
        ),
    ] = 1.0
    frequency_penalty: Annotated[
        float,
        SamplingOption(
            (-100.0, 100.0),
            allowed="-100 to 100 (0 is off)",
            flag="--frequency-penalty X",
            help="lower a token's logit by X each time it is generated; 0: off",
            penalise=frequent,
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        SamplingOption(
            (-100.0, 100.0),
            allowed="-100 to 100 (0 is off)",
            flag="--presence-penalty X",
            help="lower the logits of generated tokens by X; 0: off",
            penalise=present,
        ),
    ] = 0.0
    penalty_window: Annotated[
        int,
        SamplingOption(
            (0, 2**31),
            allowed="0 (all) or more",
            flag="--repeat-last-n N",
            help="penalise only tokens among the last N; 0: all",
            gguf="penalty_last_n",
        ),
    ] = 0
    top_n_sigma: Annotated[
        float,
        SamplingOption(
            (0.0, 100.0),
            allowed="0 (off) to 100",
            flag="--top-n-sigma N",
            help="keep logits within N standard deviations of the largest; 0: off",
            least=near_top,
        ),
    ] = 0.0
    logit_bias: Mapping[int, float] | Bias = ()
    """By id, what is added to its logit, -100 (never) to 100; kept as pairs in the order of the ids."""
    biases: Marked = field(init=False, repr=False, compare=False)
    """What `logit_bias` adds to a row."""
    active: Mapping[str, SamplingOption] = field(init=False, repr=False, compare=False)
    """The options that are not off, by name, in the order of the fields."""

    def __post_init__(self) -> None:
        table = sampling_table(type(self))
        for option in table:
            if not option.allows(value := getattr(self, option.name)):
                raise InputError(f"{option.name} {value} is out of range: {option.allowed}")
        active = {option.name: option for option in table if getattr(self, option.name) != option.off}
        object.__setattr__(self, "active", active)
        object.__setattr__(self, "logit_bias", pairs := checked_bias(self.logit_bias))
        object.__setattr__(self, "biases", biases_of(pairs))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return any(option.penalise is not None for option in self.active.values())

    @property
    def changes_logits(self) -> bool:
        return self.penalises or bool(self.logit_bias)

    def penalised(self, logits: FloatArray, seen: Marked, *, ids: IntArray | None = None) -> FloatArray:
        """Return the row after biases and penalties; the same array if there are none.

        seen: the row's indices of tokens that occurred, and how often each was generated. ids: the id of each element,
        ascending; None: its index.
        """
        if not self.changes_logits:
            return logits
        result, bias = logits.copy(), self.biases.among(ids)
        result[bias.ids] += bias.numbers
        values = result[seen.ids]
        for name, option in self.active.items():
            if option.penalise is not None:
                values = option.penalise(values, seen.numbers, getattr(self, name))
        result[seen.ids] = values
        return result

    def truncations(self) -> Iterator[tuple[Truncation, float]]:
        """Yield the active truncations with their values, in order."""
        for name, option in self.active.items():
            if option.keeps is not None:
                yield option.keeps, getattr(self, name)

    def floors(self) -> Iterator[tuple[Floor, float]]:
        """Yield the active options that select by logits, with their values."""
        for name, option in self.active.items():
            if option.least is not None:
                yield option.least, getattr(self, name)

    def check_ids(self, size: int) -> None:
        """Raise InputError if a bias is for an id outside a vocabulary of this size."""
        if len(self.biases.ids) and (last := int(self.biases.ids[-1])) >= size:
            raise InputError(f"logit_bias has the id {last}, and the vocabulary's ids are 0 to {size - 1}")

    def as_dict(self) -> dict[str, float]:
        return {option.name: getattr(self, option.name) for option in sampling_table(type(self))}

    def ranking(self, count: int) -> SamplingOptions:
        """Return options with the same penalties that keep the `count` likeliest ids, at temperature 1."""
        off = {name: option.off for name, option in self.active.items() if option.keeps or option.least}
        changes: dict[str, Any] = {**off, "temperature": 1.0, "top_k": count}
        return replace(self, **changes)


_TABLES: dict[type[SamplingOptions], tuple[SamplingOption, ...]] = {}


def sampling_table(kind: type[SamplingOptions] = SamplingOptions) -> tuple[SamplingOption, ...]:
    """Return the options in the order of the fields; cached per class."""
    if kind not in _TABLES:
        _TABLES[kind] = _fields_table(kind)
    return _TABLES[kind]


def _fields_table(kind: type[SamplingOptions]) -> tuple[SamplingOption, ...]:
    hints, table = get_type_hints(kind, include_extras=True), list[SamplingOption]()
    for each in fields(kind):
        off: Any = each.default
        for row in getattr(hints[each.name], "__metadata__", ()):
            if isinstance(row, SamplingOption):
                table.append(replace(row, name=each.name, off=off))
    return tuple(table)


def weighted(logits: FloatArray, options: SamplingOptions) -> tuple[IntArray | None, FloatArray]:
    """Return the indices to sample from, ascending (None: all), and their weights, positive and not normalised.

    Indices that tie with the last one of top-k or top-p are kept. Raises CapabilityError for a NaN, or if the largest
    logit is infinite.
    """
    top = logits[largest(logits)]
    if not np.isfinite(top):
        raise damaged_logits()
    indices: IntArray | None = None
    if floors := [least(logits, value) for least, value in options.floors()]:
        indices = np.flatnonzero(logits >= max(floors))
        logits = logits[indices]
    weights = unnormalised(logits, top, exponent_scale(options.temperature))
    for keeps, value in options.truncations():
        indices, weights = _selected(keeps(weights, value), indices, weights)
    return (indices, weights) if weights.all() else _selected(weights > 0, indices, weights)


def _selected(
    kept: npt.NDArray[np.bool_], indices: IntArray | None, weights: FloatArray
) -> tuple[IntArray, FloatArray]:
    places = np.flatnonzero(kept)
    return (places if indices is None else indices[places]), weights[places]


def _nucleus_floor(weights: FloatArray, top_p: float) -> np.float32:
    """Return the smallest weight in the nucleus, the smallest set of likeliest indices whose share reaches `top_p`."""
    total = total_mass(weights)
    enough = max(1, int(top_p * float(total)))
    # All weights below an even share of the mass to drop sum to less than that mass, so they need not be sorted.
    share = (total - enough) / len(weights) / MASS_UNIT * (1 - 2.0**-20) - 1 / MASS_UNIT
    head = np.sort(weights[weights >= np.float32(max(share, 0.0))])[::-1]
    place = int(np.searchsorted(np.cumsum(masses(head)), enough))
    return np.float32(head[place])
