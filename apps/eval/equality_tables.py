"""Results of `eval --equality`, as tables and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict

from edgedecode.pack.engine_equality import EXPECTED_BEYOND, Equality
from edgedecode.pack.manifest import ModelEntry
from edgedecode.text.printable import shown

from ..terminal import table_console
from .tally import noisier
from .two_engines import Comparison


def equality_verdict(found: Mapping[str, Equality]) -> str:
    """Return the verdict behind the exit code, in one line."""
    different = [f"{role} on {_excess(equality)}" for role, equality in found.items() if not equality.equal]
    first, second = next(iter(found.values())).engines
    if different:
        return f"NOT EQUAL: {first} and {second} differ by more than kernel noise: {', '.join(different)}"
    few = sum(equality.beyond_tokens for equality in found.values())
    but = f", except {few} near ties, no more than expected beyond a percentile" if few else ""
    return f"EQUAL: every token is the arg-max in both {first} and {second}, or within kernel noise{but}"


def _excess(equality: Equality) -> str:
    """Return why two engines are not equal: tokens that are not near ties, or too many tokens beyond the noise."""
    tokens = f"{equality.untied} tokens are not near ties" if equality.untied else f"tokens: {equality.beyond_rate}"
    return f"{equality.beyond} of {equality.prompts} prompts ({tokens})"


def equality_json(equality: Equality) -> dict[str, object]:
    """Return the fields of `equality`, the verdict, and the rates' bounds."""
    rates = {"divergent": equality.divergent_rate, "beyond_tokens": equality.beyond_rate}
    bounds = {f"{name}_bounds": [rate.low, rate.high] for name, rate in rates.items()}
    return {**asdict(equality), "equal": equality.equal, **bounds}


NAMED = 10
"""Number of prompts beyond the noise that are listed by name."""
_NAME_LENGTH = 60


def show_equality(role: str, entry: ModelEntry, equality: Equality, comparison: Comparison) -> None:
    """Print one model's result: conditions, counts, and the prompts whose gap exceeds the noise."""
    from rich.table import Table

    console = table_console()
    engines = ", ".join(f"{name} ({versions})" for name, versions in equality.engines.items())
    console.print(shown(f"{role}, {quantization(entry)}: {engines}"), highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("prompts", "arg-max in both", "divergent prompts", "largest gap"):
        table.add_column(title, justify="right")
    for name in equality.noise:
        table.add_column(f"noise of {name}", justify="right")
    table.add_column("tokens beyond noise", justify="right")
    table.add_row(
        str(equality.prompts),
        f"{equality.hits} of {equality.tokens} tokens",
        str(equality.divergent),
        _logits(equality.largest_gap),
        *(_logits(value) for value in equality.noise.values()),
        str(equality.beyond_tokens),
    )
    console.print(table)
    console.print(f"divergent prompts: {equality.divergent_rate}", highlight=False)
    console.print(
        f"tokens beyond noise: {equality.beyond_rate}; {EXPECTED_BEYOND:.1%} expected, since the noise is a percentile",
        highlight=False,
    )
    noise = noisier(comparison.noise)
    beyond = [prompt for prompt in comparison.prompts if prompt.beyond(noise)]
    for prompt in beyond[:NAMED]:
        text = " ".join(prompt.name.split())
        short = text if len(text) <= _NAME_LENGTH else text[:_NAME_LENGTH] + "…"
        gaps = ", ".join(f"{score.largest_gap:.3g} in {name}" for name, score in prompt.scores.items())
        console.print(f"beyond the noise: {short!r}: {gaps}", highlight=False, markup=False)
    if len(beyond) > NAMED:
        console.print(f"and {len(beyond) - NAMED} more", highlight=False)
    console.print()


def quantization(entry: ModelEntry) -> str:
    """Return the storage types of the weights and of the head."""
    body = f"int{entry.bits} blocks of {entry.block_size}" if entry.bits < 16 else f"float{entry.bits}"
    return f"{body}, head {'int' if entry.head_bits < 16 else 'float'}{entry.head_bits}"


def _logits(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.3g}"
