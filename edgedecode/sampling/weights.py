"""The sampling options: their ranges, names and effects.

To add an option, add a function (`penalties`, `truncations`) and a field here; fields are processed in their order.
Options that the native helper does not support are processed in numpy.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, get_type_hints

from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import InputError

from .penalties import Bias, Marked, biases_of, checked_bias, frequent, present, repeated
from .truncations import Floor, Truncation, kth_largest, near_best, near_top, nucleus, typical, without_best

Penalty = Callable[[FloatArray, FloatArray, float], FloatArray]
"""(logits of the tokens seen, how often each was generated, the option's value) → the penalised logits."""


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
    chance_for: str = ""
    """The field whose value `keeps` takes; this field's is then the chance that it is applied to a row."""
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


_ABOVE_0 = math.ulp(0.0)
BREAKERS = ("\n", ":", '"', "*")
"""What ends DRY's repetitions by default."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How to sample a token. temperature 0 is greedy: the arg-max of the penalised row.

    The order of processing is logit_bias, the penalties in the order of the fields, DRY, top-k and top-nσ, temperature,
    then the options with `keeps` in the order of the fields, and Mirostat. Raises InputError for values out of range.
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
    typical_p: Annotated[
        float,
        SamplingOption(
            (_ABOVE_0, 1.0),
            allowed="above 0, up to 1 (off)",
            flag="--typical-p P",
            help="keep the tokens of the most typical surprise up to this mass; 1: off",
            keeps=typical,
        ),
    ] = 1.0
    xtc_probability: Annotated[
        float,
        SamplingOption(
            (0.0, 1.0),
            allowed="0 (off) to 1",
            flag="--xtc-probability P",
            help="chance per token to exclude the top choices; 0: off",
            gguf="xtc_probability",
            keeps=without_best,
            chance_for="xtc_threshold",
        ),
    ] = 0.0
    xtc_threshold: Annotated[
        float,
        SamplingOption(
            (0.0, 1.0),
            allowed="0 to 1",
            flag="--xtc-threshold P",
            help="top choices have at least this probability, and the least likely of them stays (default: 0.1)",
            gguf="xtc_threshold",
        ),
    ] = 0.1
    mirostat: Annotated[
        int,
        SamplingOption(
            (2, 2),
            allowed="0 (off) or 2",
            flag="--mirostat N",
            help="2: drop tokens above a limit of surprise that follows the text; 0: off",
            gguf="mirostat",
        ),
    ] = 0
    mirostat_tau: Annotated[
        float,
        SamplingOption(
            (_ABOVE_0, 100.0),
            allowed="above 0, up to 100",
            flag="--mirostat-ent T",
            help="Mirostat's mean surprise in bits (default: 5)",
            gguf="mirostat_tau",
        ),
    ] = 5.0
    mirostat_eta: Annotated[
        float,
        SamplingOption(
            (0.0, 10.0),
            allowed="0 to 10",
            flag="--mirostat-lr E",
            help="how fast Mirostat's limit follows (default: 0.1)",
            gguf="mirostat_eta",
        ),
    ] = 0.1
    dry_multiplier: Annotated[
        float,
        SamplingOption(
            (0.0, 100.0),
            allowed="0 (off) to 100",
            flag="--dry-multiplier X",
            help="lower logits that continue a repetition of L tokens by X * base^(L - allowed length); 0: off",
        ),
    ] = 0.0
    dry_base: Annotated[
        float, SamplingOption((1.0, 100.0), allowed="1 to 100", flag="--dry-base B", help="DRY's base (default: 1.75)")
    ] = 1.75
    dry_allowed_length: Annotated[
        int,
        SamplingOption(
            (0, 2**31),
            allowed="0 or more",
            flag="--dry-allowed-length N",
            help="DRY's shortest repetition (default: 2)",
        ),
    ] = 2
    dry_penalty_last_n: Annotated[
        int,
        SamplingOption(
            (0, 2**31), allowed="0 (all) or more", flag="--dry-penalty-last-n N", help="DRY's last N tokens; 0: all"
        ),
    ] = 0
    dry_sequence_breakers: tuple[str | int, ...] = BREAKERS
    """Texts that end DRY's repetitions, wherever a token contains one; a session replaces them by the tokens' ids."""
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
        if self.dry_sequence_breakers is not BREAKERS:
            from .dry import checked_breakers  # late: most answers are without DRY

            object.__setattr__(self, "dry_sequence_breakers", checked_breakers(self.dry_sequence_breakers))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return any(option.penalise is not None for option in self.active.values())

    @property
    def changes_logits(self) -> bool:
        return self.penalises or bool(self.logit_bias or self.dry_multiplier)

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

    def truncations(self, coin: float) -> Iterator[tuple[Truncation, float]]:
        """Yield the active truncations with their values, in order. coin: as for `weighted`."""
        for name, option in self.active.items():
            if option.keeps is not None and not (option.chance_for and coin >= getattr(self, name)):
                yield option.keeps, getattr(self, option.chance_for or name)

    def floors(self) -> Iterator[tuple[Floor, float]]:
        """Yield the active options that select by logits, with their values."""
        for name, option in self.active.items():
            if option.least is not None:
                yield option.least, getattr(self, name)

    def for_vocabulary(self, size: int, find: Callable[[str], Collection[int]]) -> "SamplingOptions":
        """Return options whose sequence breakers are ids. find: returns the ids of the tokens that contain a text.

        Raises InputError if a bias is for an id outside a vocabulary of this size, or no token contains a breaker.
        """
        if len(self.biases.ids) and (last := int(self.biases.ids[-1])) >= size:
            raise InputError(f"logit_bias has the id {last}, and the vocabulary's ids are 0 to {size - 1}")
        if not self.dry_multiplier:
            return self
        from .dry import breaker_ids

        return replace(self, dry_sequence_breakers=breaker_ids(self.dry_sequence_breakers, find, defaults=BREAKERS))

    def as_dict(self) -> dict[str, float]:
        return {option.name: getattr(self, option.name) for option in sampling_table(type(self))}

    def unpenalised(self) -> "SamplingOptions":
        """Return options for rows that have the biases and penalties already."""
        off = {name: option.off for name, option in self.active.items() if option.penalise}
        changes: dict[str, Any] = {**off, "dry_multiplier": 0.0, "logit_bias": ()}
        return replace(self, **changes)

    def ranking(self, count: int) -> "SamplingOptions":
        """Return options with the same penalties that keep the `count` likeliest ids, at temperature 1."""
        off = {name: option.off for name, option in self.active.items() if option.keeps or option.least}
        changes: dict[str, Any] = {**off, "temperature": 1.0, "top_k": count, "mirostat": 0}
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
