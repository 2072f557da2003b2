"""Tables of a manifest: the pack, each model, its graphs, adapters and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.chips import CHIPS
from edgedecode.pack.engine_equality import Equality
from edgedecode.pack.entries import ActivationsEntry, ActivationsWay, TrimCategory, TrimEntry
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry
from edgedecode.text.printable import shown

_DIGEST = 12
"""Characters shown of a digest; --json has all of them."""
_LONGEST = 2000
"""Characters shown of a text. Notes have hundreds; rich takes minutes to wrap 50,000 spaces."""
_ABSENT = "–"

_WIRING = {
    "max_error": "full sequence",
    "crop_error": "after a rollback",
    "pieces_error": "in chunks",
    "tree_error": "tree",
    "branches_error": "16 branches",
}
_KERNELS = ("kernel_rms_error", "kernel_top1", "kernel_max_error")
_LOSS = ("loss_kl", "loss_top1", "loss_positions")
_VARIANTS = {"hidden_max_error": "hidden", "lora_max_error": "lora with an adapter"}
_CACHE = ("kv8_rms_error", "kv8_top1")
_CONDITIONS = ("tokens", "deviation", "noise_largest", "noise_positions")


def summary_table(manifest: Manifest, root: Path) -> Table:
    """Return what a user asks about a pack first, in at most eight lines."""
    first, models = next(iter(manifest.models.values())), manifest.models.items()
    licences = dict.fromkeys(entry.license or "not named" for _, entry in models)
    files = f"{format_nbytes(manifest.nbytes)} in {len(manifest.files)} files"
    loss = {} if not all(name in first.parity for name in _LOSS) else dict(_parity({n: first.parity[n] for n in _LOSS}))
    notes = sum(len(entry.notes) for _, entry in models)
    return _pairs(
        {
            "pack": f"{manifest.name}, {files}, {root}",
            **{role: _model_line(manifest, role) for role, _ in models},
            **loss,
            "licence": ", ".join(licences),
            "chat template": "yes" if manifest.chat_template is not None else "none, a generic one is used",
            **({"adapters": ", ".join(manifest.adapters)} if manifest.adapters else {}),
            "more": f"`edgedecode show --full`{f', with {notes} notes of the export' if notes else ''}",
        }
    )


def _model_line(manifest: Manifest, role: str) -> str:
    entry = manifest.models[role]
    weights = f"{format_nbytes(manifest.weights_nbytes(role))} ({_quantization(entry)})"
    return f"{entry.parameters / 1e6:.1f}M parameters, {weights}, context of {entry.context} tokens"


def pack_table(manifest: Manifest, root: Path) -> Table:
    """Return the facts of the pack as a whole."""
    generation = manifest.generation
    template = "yes" if manifest.chat_template is not None else "none, a generic one is used"
    sampling = {**generation.sampling, "max_tokens": generation.max_tokens}
    given = [f"{name.replace('_', ' ')} {value:g}" for name, value in sampling.items() if value is not None]
    return _pairs(
        {
            "pack": f"{manifest.name}, {format_nbytes(manifest.nbytes)} in {len(manifest.files)} files",
            "folder": str(root),
            "created by": manifest.created_by,
            "tokenizer": f"{manifest.vocabulary_size} ids, digest {manifest.tokenizer_digest[:_DIGEST]}",
            "end ids": ", ".join(map(str, generation.end_token_ids)) or "none",
            "chat template": template,
            "sampling": ", ".join(given) or "greedy",
        }
    )


def model_table(manifest: Manifest, role: str) -> Table:
    """Return the facts of one role's model."""
    entry = manifest.models[role]
    heads = f"{entry.kv_heads} key-value head{'s' if entry.kv_heads > 1 else ''} of {entry.head_size}"
    return _pairs(
        {
            role: f"{entry.architecture}, {entry.parameters / 1e6:.1f}M parameters",
            "source": entry.source,
            "licence": entry.license,
            "dimensions": f"{entry.layers} layers of width {entry.hidden_size}, {heads}, {entry.rows} logits",
            "context": f"{entry.context} positions" + (f", window of {entry.window}" if entry.window else ""),
            "weights": f"{format_nbytes(manifest.weights_nbytes(role))}, {_quantization(entry)}",
            **dict(_parity(entry.parity)),
            **({} if entry.activations is None else dict(_activations(entry.activations))),
            "kernel noise": _noise(entry),
            **({} if entry.equality is None else {"engine equality": _equality(entry.equality)}),
            **({} if entry.trim is None else dict(_trim(entry.trim, rows=entry.rows))),
            **{f"note {number}": note for number, note in enumerate(entry.notes, start=1)},
        }
    )


def graph_table(entry: ModelEntry, manifest: Manifest) -> Table:
    """Return a line for each of a model's graphs."""
    table = _table("graph", "file", "size", "capabilities", "KV cache", "LoRA")
    for name, graph in entry.graphs.items():
        size = f"{manifest.files[graph.file].nbytes / 1e3:.0f} kB"
        _add(table, name, graph.file, size, ", ".join(graph.capabilities), graph.kv_type, _lora(graph))
    return table


def compiled_table(entry: ModelEntry, manifest: Manifest) -> Table:
    """Return a line for each graph that was compiled for an NPU."""
    table = _table("compiled graph", "for", "size", "compiler", "same token on the emulator")
    for name, graph in entry.graphs.items():
        for each in graph.compiled:
            chips = ", ".join(CHIPS[number].name if number in CHIPS else f"chip {number}" for number in each.socs)
            size = format_nbytes(manifest.files[each.file].nbytes + manifest.files[each.binary].nbytes)
            same = "not run" if each.agreement is None else f"{each.agreement:.1%}"
            _add(table, name, f"{each.provider}: {chips}", size, each.sdk, same)
    return table


def adapter_table(manifest: Manifest) -> Table:
    """Return a line for each adapter."""
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
    """Yield title and text for each group of parity figures; unknown ones, of a newer export, come last by name."""
    if wiring := {title: numbers[name] for name, title in _WIRING.items() if name in numbers}:
        errors = ", ".join(f"{title} {error:.1e}" for title, error in wiring.items())
        yield "graph parity", f"{errors} (largest error in logits{_conditions(numbers)})"
    if all(name in numbers for name in _KERNELS):
        rms, same, largest = (numbers[name] for name in _KERNELS)
        yield (
            "kernel error",
            f"from rounding activations {rms:.1%}, same top token {same:.1%}, largest {largest:.2g} logits",
        )
    if all(name in numbers for name in _LOSS):
        kl, same, positions = (numbers[name] for name in _LOSS)
        yield (
            "loss",
            f"KL {kl:.2g} from the original weights, same top token {same:.1%}, over {positions:.0f} positions",
        )
    if variants := {title: numbers[name] for name, title in _VARIANTS.items() if name in numbers}:
        errors = ", ".join(f"{title} {error:.1e}" for title, error in variants.items())
        yield "variant parity", f"{errors} (largest error)"
    if all(name in numbers for name in _CACHE):
        rms, same = (numbers[name] for name in _CACHE)
        yield "int8 KV error", f"from rounding keys and values {rms:.1%}, same top token {same:.1%}"
    known = {*_WIRING, *_KERNELS, *_LOSS, *_CONDITIONS, *_VARIANTS, *_CACHE}
    if others := [f"{name} {value:.3g}" for name, value in numbers.items() if name not in known]:
        yield "parity", ", ".join(others)


def _activations(found: ActivationsEntry) -> Iterator[tuple[str, str]]:
    """Yield title and text for the activations' bits, and their errors, top tokens and times by number of bits."""
    count = len(found.products)
    wide = f"16 bits in {len(found.wide)} of {count}" if found.wide else f"8 bits in all {count}"
    by = "as requested" if found.asked != "auto" else "chosen by error"
    yield "activations", f"{wide} matmul inputs ({by}; {found.kernels or 'engine'} kernels, {found.text})"
    if found.products:
        worst, error = max(found.products.items(), key=lambda item: item[1].at8)
        yield "matmul error", f"largest at 8 bits {error.at8:.1%}, same matmul at 16 bits {error.at16:.2%} ({worst})"
    titles = {"8": "at 8 bits", "16": "at 16 bits", "chosen": "as chosen"}
    ways = {titles.get(name, name): way for name, way in found.ways.items()}
    if ways:
        same = ", ".join(f"{title} {way.agreement:.1%}" for title, way in ways.items())
        yield "same top token", f"as with float activations: {same}"
    if times := [f"{title} {_times(way)}" for title, way in ways.items() if way.step_ms is not None]:
        yield "one-row pass", ", ".join(times)


def _trim(trim: TrimEntry, *, rows: int) -> Iterator[tuple[str, str]]:
    """Yield title and text for the trim's size, its speed-up on each category, and its warnings."""
    advice = "recommended" if trim.recommended else "not recommended"
    measured = f" on {trim.runtime}" if trim.runtime else ""
    step = "" if trim.step_share is None else f", a draft step takes {1 - trim.step_share:.1%} less time"
    counted = f", calibrated on {trim.calibration}" if trim.calibration else ""
    yield "trim", f"{trim.size} of {rows} ids, {advice}{measured}{step}{counted}"
    for name, found in (trim.categories or {}).items():
        yield f"trim: {name}", _category(found, length=trim.length)
    for number, warning in enumerate(trim.warnings, start=1):
        yield f"trim warning {number}", warning


def _category(found: TrimCategory, *, length: int) -> str:
    trimmed, full = f"{found.acceptance:.2f} tokens per round", f"{found.acceptance_full:.2f}"
    if found.speed_up is not None and found.speed_up_full is not None:
        trimmed += f", predicted speed-up {found.speed_up:.2f}"
        full += f", {found.speed_up_full:.2f}"
    if found.measured is not None and found.measured_full is not None:
        trimmed += f", measured {found.measured:.2f}"
        full += f", {found.measured_full:.2f}"
    covered = f"covers {found.coverage:.1%} of {found.tokens} tokens"
    return f"{covered}; drafts of {length}: {trimmed} (full vocabulary: {full})"


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
    """Return the last result of `eval --equality` in one line."""
    engines = " and ".join(f"{name} ({versions})" for name, versions in found.engines.items())
    gap = "not a number" if found.largest_gap is None else f"{found.largest_gap:.2g}"
    verdict = "equal" if found.equal else f"NOT EQUAL on {found.beyond} prompts"
    cache = f", {found.kv_type} KV cache" if found.kv_type else ""
    return (
        f"{engines}: {verdict}, {found.hits} of {found.tokens} tokens arg-max in both, divergent prompts: "
        f"{found.divergent_rate}, largest gap {gap} (prompts {found.prompts_digest[:_DIGEST]}{cache})"
    )


def _lora(graph: Graph) -> str:
    return f"up to rank {graph.lora_rank}: {', '.join(graph.lora_modules)}" if graph.lora_rank else _ABSENT


def _pairs(rows: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        _add(table, name, value)
    return table


def _add(table: Table, *cells: str) -> None:
    """Add a row of untrusted texts, without markup or control characters, and cut to a length rich can wrap."""
    table.add_row(*(Text(shown(cell[:_LONGEST])) for cell in cells))


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, pad_edge=False)
