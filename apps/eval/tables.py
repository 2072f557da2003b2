"""Results of `eval`, as tables, as JSON, and as figures for a manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from edgedecode.engines.text_scores import LIKELY
from edgedecode.pack.engine_equality import EXPECTED_BEYOND, Equality, Rate
from edgedecode.pack.manifest import ModelEntry
from edgedecode.pack.weights_text import quantization
from edgedecode.text.printable import shown

from ..machine import engine_versions
from ..terminal import plain_table, table_console
from .equality import Comparison, noisier
from .kv_types import KvQuality

KvFound = Mapping[str, Sequence[KvQuality]]
"""One model's results by engine: each KV type, the reference first."""


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
    return {**asdict(equality), "equal": equality.equal, **_bounds(rates)}


def _bounds(rates: Mapping[str, Rate]) -> dict[str, object]:
    return {f"{name}_bounds": [rate.low, rate.high] for name, rate in rates.items()}


NAMED = 10
"""Number of prompts beyond the noise that are listed by name."""
_NAME_LENGTH = 60


def show_equality(role: str, entry: ModelEntry, equality: Equality, comparison: Comparison) -> None:
    """Print one model's result: conditions, counts, and the prompts whose gap exceeds the noise."""
    engines = ", ".join(f"{name} ({versions})" for name, versions in equality.engines.items())
    print(shown(f"{role}, {quantization(entry)}: {engines}"))
    noises = (f"noise of {name}" for name in equality.noise)
    table = plain_table(
        *("prompts", "arg-max in both", "divergent prompts", "largest gap"), *noises, "tokens beyond noise"
    )
    table.add_row(
        str(equality.prompts),
        f"{equality.hits} of {equality.tokens} tokens",
        str(equality.divergent),
        _logits(equality.largest_gap),
        *(_logits(value) for value in equality.noise.values()),
        str(equality.beyond_tokens),
    )
    table_console().print(table)
    print(f"divergent prompts: {equality.divergent_rate}")
    expected = f"{EXPECTED_BEYOND:.1%} expected, since the noise is a percentile"
    print(f"tokens beyond noise: {equality.beyond_rate}; {expected}")
    noise = noisier(comparison.noise)
    beyond = [prompt for prompt in comparison.prompts if prompt.beyond(noise)]
    for prompt in beyond[:NAMED]:
        text = " ".join(prompt.name.split())
        short = text if len(text) <= _NAME_LENGTH else text[:_NAME_LENGTH] + "…"
        gaps = ", ".join(f"{score.largest_gap:.3g} in {name}" for name, score in prompt.scores.items())
        print(f"beyond the noise: {short!r}: {gaps}")
    if len(beyond) > NAMED:
        print(f"and {len(beyond) - NAMED} more")
    print()


def _logits(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.3g}"


def show_kv_types(role: str, weights: str, found: KvFound) -> None:
    """Print a line for each engine and type, and a legend of the columns."""
    print(f"{role}, {weights}: {', '.join(f'{name} ({engine_versions(name)})' for name in found)}")
    figures = ("bytes per token", "positions", "perplexity", "ratio (95%)", "same top token (95%)")
    table = plain_table("engine", "KV type", *figures, "KL, nats", "same answers", left=2)
    for engine, types in found.items():
        for place, quality in enumerate(types):
            table.add_row(engine, *_cells(quality, is_reference=not place))
    table_console().print(table)
    print(
        "Each type is compared with its engine's first type, on the prompts and that type's greedy answers, scored in "
        f"passes of many rows. KL: over the first type's {LIKELY} likeliest tokens and one class for all others. Same "
        "answers: greedy, token for token.\n"
    )


def _cells(quality: KvQuality, *, is_reference: bool) -> list[str]:
    size = str(quality.kv_nbytes) if quality.kv_nbytes else "–"
    own = [quality.kv_type, size, str(quality.positions), f"{quality.perplexity:.4f}"]
    if is_reference:
        return [*own, "1", "", "", ""]
    bounds = quality.ratio_low, quality.ratio_high
    between = "" if None in bounds else f" ({bounds[0]:.5f} to {bounds[1]:.5f})"
    top, answers = quality.leading_rate, f"{quality.identical} of {quality.texts}"
    same = f"{top.share:.2%} ({top.low:.2%} to {top.high:.2%})"
    return [*own, f"{quality.ratio:.5f}{between}", same, f"{quality.divergence:.2g}", answers]


def kv_json(found: KvFound) -> dict[str, object]:
    """Return each engine's versions, and each type's figures with the rates' bounds."""
    return {
        engine: {"engine": engine_versions(engine), "reference": types[0].kv_type, "types": list(map(_figures, types))}
        for engine, types in found.items()
    }


def _figures(quality: KvQuality) -> dict[str, object]:
    return asdict(quality) | _bounds({"leading": quality.leading_rate, "identical": quality.identical_rate})


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
