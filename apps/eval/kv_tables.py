"""Results of `eval --kv-types`, as tables, as JSON, and as figures for a manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from edgedecode.engines.text_scores import LIKELY
from edgedecode.pack.engine_equality import Rate

from ..machine import engine_versions
from ..terminal import table_console
from .kv_quality import KvQuality

KvFound = Mapping[str, Sequence[KvQuality]]
"""One model's results by engine: each KV type, the reference first."""


def show_kv_types(role: str, weights: str, found: KvFound) -> None:
    """Print a line for each engine and type, and a legend of the columns."""
    from rich.table import Table

    console = table_console()
    engines = ", ".join(f"{name} ({engine_versions(name)})" for name in found)
    console.print(f"{role}, {weights}: {engines}", highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("engine", "KV type"):
        table.add_column(title)
    for title in (
        *("bytes per token", "positions", "perplexity", "ratio (95%)", "same top token (95%)"),
        *("KL, nats", "same answers"),
    ):
        table.add_column(title, justify="right")
    for engine, types in found.items():
        for place, quality in enumerate(types):
            table.add_row(engine, *_cells(quality, is_reference=not place))
    console.print(table)
    console.print(
        "Each type is compared with its engine's first type, on the prompts and that type's greedy answers, scored in "
        f"passes of many rows. KL: over the first type's {LIKELY} likeliest tokens and one class for all others. Same "
        "answers: greedy, token for token.",
        highlight=False,
        soft_wrap=True,
    )
    console.print()


def _cells(quality: KvQuality, *, is_reference: bool) -> list[str]:
    size = str(quality.kv_nbytes) if quality.kv_nbytes else "–"
    own = [quality.kv_type, size, str(quality.positions), f"{quality.perplexity:.4f}"]
    if is_reference:
        return [*own, "1", "", "", ""]
    bounds = quality.ratio_low, quality.ratio_high
    between = "" if None in bounds else f" ({bounds[0]:.5f} to {bounds[1]:.5f})"
    return [
        *own,
        f"{quality.ratio:.5f}{between}",
        _percent(quality.leading_rate),
        f"{quality.divergence:.2g}",
        f"{quality.identical} of {quality.texts}",
    ]


def _percent(rate: Rate) -> str:
    return f"{rate.share:.2%} ({rate.low:.2%} to {rate.high:.2%})"


def kv_json(found: KvFound) -> dict[str, object]:
    """Return each engine's versions, and each type's figures with the rates' bounds."""
    return {
        engine: {"engine": engine_versions(engine), "reference": types[0].kv_type, "types": list(map(_figures, types))}
        for engine, types in found.items()
    }


def _figures(quality: KvQuality) -> dict[str, object]:
    rates = {"leading": quality.leading_rate, "identical": quality.identical_rate}
    return {**asdict(quality), **{f"{name}_bounds": [rate.low, rate.high] for name, rate in rates.items()}}


def kv_numbers(found: KvFound) -> dict[str, float]:
    """Return the figures that a manifest keeps of each type except the reference."""
    numbers: dict[str, float] = {}
    for engine, types in found.items():
        for quality in types[1:]:
            name = f"kv_{quality.kv_type}_{engine}"
            numbers |= {
                f"{name}_perplexity_ratio": quality.ratio,
                f"{name}_top1": quality.leading_rate.share,
                f"{name}_divergence": quality.divergence,
                f"{name}_positions": float(quality.positions),
            }
    return numbers
