"""A manifest as tables: the pack, each model, its graphs, the files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.engine_equality import Equality
from edgedecode.pack.entries import ActivationsEntry, ActivationsWay, TrimCategory
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry, TrimEntry
from edgedecode.text.printable import shown

__all__ = ["adapter_table", "file_table", "graph_table", "model_table", "pack_table"]

_DIGEST = 12
"""Characters of a digest that are shown; --json has all of them."""
_LONGEST = 2000
"""Characters of a text that are shown: notes have hundreds, and rich takes minutes over 50,000 spaces."""
_ABSENT = "–"

_WIRING = {
    "max_error": "whole",
    "crop_error": "after a crop",
    "pieces_error": "in pieces",
    "tree_error": "tree",
    "branches_error": "16 branches",
}
_KERNELS = ("kernel_rms_error", "kernel_top1", "kernel_max_error")
_LOSS = ("loss_rms", "loss_top1")
_VARIANTS = {"hidden_max_error": "hidden", "lora_max_error": "lora with an adapter"}
_CACHE = ("kv8_rms_error", "kv8_top1")
_CONDITIONS = ("tokens", "deviation", "noise_largest", "noise_positions")


def pack_table(manifest: Manifest, root: Path) -> Table:
    """Return what holds for the whole pack."""
    generation = manifest.generation
    template = "yes" if manifest.chat_template is not None else "none: a plain one is used"
    sampling = {**generation.sampling, "max_tokens": generation.max_tokens}
    given = [f"{name.replace('_', ' ')} {value:g}" for name, value in sampling.items() if value is not None]
    return _pairs(
        {
            "pack": f"{manifest.name}, {format_nbytes(manifest.nbytes)} in {len(manifest.files)} files",
            "folder": str(root),
            "made by": manifest.created_by,
            "tokenizer": f"{manifest.vocabulary_size} ids, digest {manifest.tokenizer_digest[:_DIGEST]}",
            "end ids": ", ".join(map(str, generation.end_token_ids)) or "none",
            "chat template": template,
            "sampling": ", ".join(given) or "greedy",
        }
    )


def model_table(manifest: Manifest, role: str) -> Table:
    """Return what holds for one role's model."""
    entry = manifest.models[role]
    heads = f"{entry.kv_heads} key-value head{'s' if entry.kv_heads > 1 else ''} of {entry.head_size}"
    return _pairs(
        {
            role: f"{entry.architecture}, {entry.parameters / 1e6:.1f}M parameters",
            "source": entry.source,
            "licence": entry.license,
            "sizes": f"{entry.layers} layers of width {entry.hidden_size}, {heads}, {entry.rows} rows",
            "context": f"{entry.context} positions" + (f", window of {entry.window}" if entry.window else ""),
            "weights": f"{format_nbytes(manifest.weights_nbytes(role))}, {_quantization(entry)}",
            **dict(_parity(entry.parity)),
            **({} if entry.activations is None else dict(_activations(entry.activations))),
            "kernel noise": _noise(entry),
            **({} if entry.equality is None else {"engines": _equality(entry.equality)}),
            **({} if entry.trim is None else dict(_trim(entry.trim, rows=entry.rows))),
            **{f"note {number}": note for number, note in enumerate(entry.notes, start=1)},
        }
    )


def graph_table(entry: ModelEntry, manifest: Manifest) -> Table:
    """Return a line for each of a model's graphs."""
    table = _table("graph", "file", "size", "capabilities", "keys and values", "LoRA")
    for name, graph in entry.graphs.items():
        size = f"{manifest.files[graph.file].nbytes / 1e3:.0f} kB"
        _add(table, name, graph.file, size, ", ".join(graph.capabilities), graph.kv_type, _lora(graph))
    return table


def adapter_table(manifest: Manifest) -> Table:
    """Return a line for each adapter that lies in a file."""
    table = _table("adapter", "for", "rank", "alpha", "modules", "form", "file")
    for name, adapter in manifest.adapters.items():
        activated = " (activated by tokens)" if adapter.invocation else ""
        modules = ", ".join(adapter.modules) + activated
        form = "PEFT" if adapter.config else "GGUF: llama.cpp only"
        file = manifest.located_adapter(name).file
        _add(table, name, adapter.role, str(adapter.rank), f"{adapter.alpha:g}", modules, form, file)
    return table


def file_table(manifest: Manifest) -> Table:
    """Return a line for each file."""
    table = _table("file", "bytes", "sha256")
    table.columns[1].justify = "right"
    for name, file in manifest.files.items():
        _add(table, name, str(file.nbytes), file.sha256[:_DIGEST])
    for outside in manifest.outside.values():
        _add(table, f"outside: {outside.path}", str(outside.nbytes), outside.sha256[:_DIGEST])
    return table


def _quantization(entry: ModelEntry) -> str:
    body = f"int{entry.bits}, blocks of {entry.block_size}" if entry.bits < 16 else f"float{entry.bits}"
    head = f"{'int' if entry.head_bits < 16 else 'float'}{entry.head_bits}"
    return f"{body}; head and embedding {head}" + (f"; recipe {entry.quantization}" if entry.quantization else "")


def _parity(numbers: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Group the manifest's numbers by what they say; those of a newer export come last, by their own names."""
    if wiring := {title: numbers[name] for name, title in _WIRING.items() if name in numbers}:
        errors = ", ".join(f"{title} {error:.1e}" for title, error in wiring.items())
        yield "wiring", f"{errors} (largest error in logits{_conditions(numbers)})"
    if all(name in numbers for name in _KERNELS):
        rms, same, largest = (numbers[name] for name in _KERNELS)
        yield (
            "kernels",
            f"rounding of activations {rms:.1%}, same leading token {same:.1%}, largest error {largest:.2g}",
        )
    if all(name in numbers for name in _LOSS):
        rms, same = (numbers[name] for name in _LOSS)
        yield "loss", f"of the rounded weights {rms:.1%}, same leading token {same:.1%}"
    if variants := {title: numbers[name] for name, title in _VARIANTS.items() if name in numbers}:
        yield "graphs", ", ".join(f"{title} {error:.1e}" for title, error in variants.items()) + " (largest error)"
    if all(name in numbers for name in _CACHE):
        rms, same = (numbers[name] for name in _CACHE)
        yield "int8 cache", f"of keys and values {rms:.1%}, same leading token {same:.1%}"
    known = {*_WIRING, *_KERNELS, *_LOSS, *_CONDITIONS, *_VARIANTS, *_CACHE}
    if others := [f"{name} {value:.3g}" for name, value in numbers.items() if name not in known]:
        yield "parity", ", ".join(others)


def _activations(found: ActivationsEntry) -> Iterator[tuple[str, str]]:
    """Say how many bits activations have, and both widths' errors, leading tokens and times beside each other."""
    count = len(found.products)
    wide = f"16 bits in {len(found.wide)} of {count}" if found.wide else f"8 bits in all {count}"
    by = "as asked for" if found.asked != "auto" else "chosen by error"
    yield "activations", f"{wide} inputs of products ({by}; {found.kernels or 'engine'} kernels, {found.text})"
    if found.products:
        worst, error = max(found.products.items(), key=lambda item: item[1].at8)
        yield "product error", f"largest at 8 bits {error.at8:.1%}, there at 16 bits {error.at16:.2%} ({worst})"
    titles = {"8": "at 8 bits", "16": "at 16 bits", "chosen": "as chosen"}
    ways = {titles.get(name, name): way for name, way in found.ways.items()}
    if ways:
        same = ", ".join(f"{title} {way.agreement:.1%}" for title, way in ways.items())
        yield "same token", f"leads as with float activations: {same}"
    if times := [f"{title} {_times(way)}" for title, way in ways.items() if way.step_ms is not None]:
        yield "one row", ", ".join(times)


def _trim(trim: TrimEntry, *, rows: int) -> Iterator[tuple[str, str]]:
    """Yield title and content: its size, what it was worth on each category, and where it loses."""
    advice = "recommended" if trim.recommended else "not recommended"
    measured = f" on {trim.runtime}" if trim.runtime else ""
    step = "" if trim.step_share is None else f", a draft step takes {1 - trim.step_share:.1%} less"
    counted = f", counted: {trim.calibration}" if trim.calibration else ""
    yield "trim", f"{trim.size} of {rows} ids, {advice}{measured}{step}{counted}"
    for name, found in (trim.categories or {}).items():
        yield f"trim: {name}", _category(found, length=trim.length)
    for number, warning in enumerate(trim.warnings, start=1):
        yield f"trim warning {number}", warning


def _category(found: TrimCategory, *, length: int) -> str:
    speeds = ""
    if found.speed_up is not None and found.speed_up_full is not None:
        speeds = f"; S {found.speed_up:.2f}, whole {found.speed_up_full:.2f}"
    if found.measured is not None and found.measured_full is not None:
        speeds += f" (measured {found.measured:.2f}, {found.measured_full:.2f})"
    return (
        f"{found.coverage:.1%} of {found.tokens} tokens kept; drafts of {length}: {found.acceptance:.2f} tokens a "
        f"round, whole {found.acceptance_full:.2f}{speeds}"
    )


def _times(way: ActivationsWay) -> str:
    costs = [f"c({width}) {cost:.2f}" for width, cost in ((4, way.c4), (8, way.c8)) if cost is not None]
    return f"{way.step_ms:.2f} ms" + (f" ({', '.join(costs)})" if costs else "")


def _conditions(numbers: Mapping[str, float]) -> str:
    if not {"tokens", "deviation"} <= numbers.keys():
        return ""
    return f", deviation {numbers['deviation']:.2g}, {numbers['tokens']:.0f} tokens"


def _noise(entry: ModelEntry) -> str:
    if entry.kernel_noise is None:
        return "not measured"
    largest, positions = (entry.parity.get(name) for name in ("noise_largest", "noise_positions"))
    more = "" if largest is None else f", largest {largest:.2g}"
    over = "" if positions is None else f", {positions:.0f} positions"
    return f"{entry.kernel_noise:.2g} logits (99.9th percentile{more}{over})"


def _equality(found: Equality) -> str:
    """Say what `eval --equality` found last."""
    engines = " and ".join(f"{name} ({versions})" for name, versions in found.engines.items())
    gap = "no number" if found.largest_gap is None else f"{found.largest_gap:.2g}"
    said = "equal" if found.equal else f"NOT EQUAL on {found.beyond} prompts"
    cache = f", {found.kv_type} keys and values" if found.kv_type else ""
    return (
        f"{engines}: {said}, {found.hits} of {found.tokens} tokens arg-max in both, prompts "
        f"divergent: {found.divergent_rate}, largest gap {gap} (prompts {found.prompts_digest[:_DIGEST]}{cache})"
    )


def _lora(graph: Graph) -> str:
    return f"up to rank {graph.lora_rank}: {', '.join(graph.lora_modules)}" if graph.lora_rank else _ABSENT


def _pairs(rows: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        _add(table, name, value)
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row of untrusted texts: no markup, nothing that acts on a terminal, none that takes minutes to fold."""
    table.add_row(*(Text(shown(cell[:_LONGEST])) for cell in cells))


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, pad_edge=False)
