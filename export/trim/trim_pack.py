"""Trims a pack's draft: checks first, then measures, and changes the pack last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgedecode import load
from edgedecode.engines.registry import find_drafter, find_runtime
from edgedecode.errors import EdgeDecodeError, ExportError, InputError, ManifestError
from edgedecode.library.find import find_pack
from edgedecode.pack.entries import TrimEntry
from edgedecode.pack.manifest import Manifest
from edgedecode.text.printable import file_text
from edgedecode.text.prompts import read_prompts
from edgedecode.user_notices import notice

from ..frameworks import require_frameworks
from ..stages import Stages
from .head_files import make_heads
from .id_ranking import Ranking
from .material import gather
from .measuring import Bench
from .pack_change import (
    Workplace,
    check_room,
    check_writable,
    remove_trim,
    save_entry,
    save_trim,
    trim_files,
    workplace,
)
from .sweep import Sweep, SweepRow, TrimRequest, TrimResult
from .timing import ANSWERS_PER_PROMPT, DRAFTER, measure_speeds
from .trim_texts import check_text_file, read_categories


def trim_pack(request: TrimRequest, stages: Stages) -> TrimResult:
    """Measure smaller heads of the pack's draft; add the requested one, or the best one if it beats the full head.

    Raises ExportError, InputError or ManifestError. The pack is then unchanged, as after an interrupt.
    """
    root, manifest = _opened(request.pack)
    _require_frameworks(manifest)
    if request.report:
        find_drafter(DRAFTER)
    _check_files(request)
    with workplace(root, manifest) as place:
        with load(root, runtime=request.runtime, threads=request.threads) as pair:
            bench = Bench(pair, find_runtime(pair.runtime), place, stages, request.threads)
            sizes = bench.sizes(request.size)
            check_room(root, manifest, size=max(sizes))
            bench.check()
            material = gather(pair, request, stages)
            ranking = bench.ranking([text.scored for text in material.counted])
            if request.size is None:
                sizes = bench.with_covering(sizes, ranking, material, bound=request.coverage)
            sweep = bench.sweep(ranking, sizes, material, bound=request.coverage)
        chosen = sweep.best if request.size is None else sweep.row(request.size)
        result = TrimResult(
            root,
            pair.runtime,
            material.calibration,
            sweep,
            chosen,
            None,
            prompts=material.prompts,
            former=manifest.models["draft"].trim,
        )
        if chosen is None:
            return result
        entry = _entry(sweep, chosen, calibration=material.calibration, runtime=pair.runtime)
        with stages.stage("heads"):
            saved = _saved(place, manifest, entry, ranking=ranking)
    return replace(result, entry=saved.models["draft"].trim, files=_sizes(saved))


def time_answers(request: TrimRequest, result: TrimResult, *, stages: Stages) -> TrimResult:
    """Time full answers with the trimmed pack. A failure is only a notice, because the pack is trimmed already."""
    if result.chosen is None:
        return result
    prompts = {name: found for name, found in result.prompts.items() if found}
    total = ANSWERS_PER_PROMPT * sum(map(len, prompts.values()))
    try:
        with (
            load(result.root, runtime=request.runtime, threads=request.threads) as pair,
            stages.stage("full answers", total) as advance,
        ):
            if pair.manifest.models["draft"].trim != result.entry:
                raise ManifestError("its trim was replaced or removed in the meantime")
            speeds = measure_speeds(
                pair,
                prompts,
                whole_length=result.sweep.length(result.sweep.whole),
                trimmed_length=result.sweep.length(result.chosen),
                advance=advance,
            )
    except EdgeDecodeError as error:
        notice(f"the pack {result.root} is trimmed, but full answers were not timed: {error.reason}")
        return result
    measured = entry = result.entry
    if measured is not None and measured.categories is not None:
        timed = {
            name: replace(found, measured=speeds[name].trimmed, measured_full=speeds[name].whole)
            for name, found in measured.categories.items()
            if name in speeds
        }
        entry = replace(measured, categories={**measured.categories, **timed})
        try:
            save_entry(result.root, entry, measured=measured)
        except (ManifestError, OSError) as error:
            notice(f"the speeds of full answers could not be stored in the pack {result.root}: {error}")
            entry = measured
    return replace(result, entry=entry, speeds=speeds)


def take_out(pack: str | Path) -> list[str]:
    """Remove the pack's trim; return the names of the removed files. Raises InputError if the pack has no trim."""
    root, manifest = _opened(pack)
    files = trim_files(manifest.models["draft"])
    if not files:
        raise InputError(f"the pack {root} has no trim to remove")
    with workplace(root, manifest):
        return remove_trim(root)


def _opened(pack: str | Path) -> tuple[Path, Manifest]:
    """Find the pack and run the checks that do not need its models."""
    root = find_pack(pack)
    manifest = Manifest.load(root)
    if "draft" not in manifest.models:
        raise ExportError(f"the pack {root} has no draft model to trim: export it with --draft")
    check_writable(root, manifest)
    return root, manifest


def _require_frameworks(manifest: Manifest) -> None:
    """Raise ExportError if the packages that edit graphs are missing; removing a trim does not need them."""
    if manifest.models["draft"].graphs:
        require_frameworks("trim", extra="import")


def _check_files(request: TrimRequest) -> None:
    """Check the given files before the pack is loaded. Raises InputError, OSError."""
    if request.calibrate is not None:
        file_text(request.calibrate)  # for a binary file, its error is clearer than "line 1 is not JSON"
        read_prompts(request.calibrate, family="")
    if request.text is not None:
        check_text_file(request.text)
    if request.categories is not None:
        read_categories(request.categories)


def _entry(sweep: Sweep, row: SweepRow, *, calibration: str, runtime: str) -> TrimEntry:
    return TrimEntry(
        size=row.size,
        token_ids="",
        recommended=sweep.wins(row),
        runtime=runtime,
        bound=sweep.bound,
        step_share=row.costs.step_seconds / sweep.whole.costs.step_seconds,
        length=sweep.length(row),
        calibration=calibration,
        categories=sweep.entries(row),
        warnings=sweep.warnings(row),
    )


def _saved(place: Workplace, manifest: Manifest, entry: TrimEntry, *, ranking: Ranking) -> Manifest:
    """Make the heads and put them into the pack."""
    heads = make_heads(place, manifest, vocabulary=ranking.vocabulary(entry.size))
    entry = replace(entry, token_ids=heads.trim.token_ids, gguf=heads.trim.gguf)
    return save_trim(place, graph=heads.graph, entry=entry)


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {name: manifest.files[name].nbytes for name in trim_files(manifest.models["draft"])}
