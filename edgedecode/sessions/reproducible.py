"""The widths that `--reproducible` pads forward passes to: measured once per pack and device, and cached.

There is one small file per weights, engine version, threads and processor. A file that cannot be read is measured again
with a notice; failure to write is ignored.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from edgedecode.adapters.pack_adapters import ActiveAdapter
from edgedecode.cache import keep_json, kept_json
from edgedecode.decoding.model import AdapterUse, ModelCard, State
from edgedecode.engines.identical_widths import NARROW, WIDE, BoundedState, IdenticalWidths, measure_widths
from edgedecode.engines.selection import engine_version
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.pack.manifest import Manifest
from edgedecode.sessions.experience_file import measured_file
from edgedecode.sessions.resources import Resources
from edgedecode.user_notices import notice

FOLDER = "widths"


def session_widths(shared: Resources, options: SessionOptions, adapter: ActiveAdapter | None) -> IdenticalWidths:
    """Return the widths that these options pad to; empty if no padding is needed.

    Raises CapabilityError if reproducible text is requested and no two widths agree.
    """
    if not options.reproducible or shared.target.card.row_invariant:
        return IdenticalWidths(())
    if adapter is not None and adapter.invocation:
        raise CapabilityError(
            f"--reproducible with {adapter.use.name!r}, which is activated by tokens of the prompt, needs our kernels: "
            f"see `edgedecode devices`"
        )
    use = None if adapter is None else adapter.use
    key = "" if use is None else f"{use.digest} {use.scale!r}"
    if key not in shared.identical_widths:
        shared.identical_widths[key] = _known_widths(shared, use)
    found = shared.identical_widths[key]
    if not found.drafts:
        raise CapabilityError(
            f"--reproducible needs passes of several widths whose rows have identical bits: on this device the engine "
            f"{shared.engine.name!r} rounds this pack differently in every width; try the other engine (--runtime), "
            "--threads 1, or an export with another --block-size"
        )
    return found


def limited_drafts(options: SessionOptions, widths: IdenticalWidths, *, draft_max: int) -> SessionOptions:
    """Return the options with a draft length whose passes can be padded. draft_max: the length they choose.

    Raises CapabilityError if a length was given and is too long.
    """
    if not widths.drafts or draft_max < (most := max(widths.drafts)):
        return options
    if options.draft_max is not None:
        raise CapabilityError(
            f"drafts of {draft_max} tokens need passes of {draft_max + 1} rows: with --reproducible this device allows "
            f"{most}, so use --draft-max {most - 1} at most"
        )
    return replace(options, draft_max=most - 1)


def fitting_widths(widths: IdenticalWidths, state: State, *, rows: int) -> tuple[int, ...]:
    """Return the widths that the engine evaluates in one pass on this state. rows: the widest pass with a draft.

    Raises CapabilityError if the engine would split a pass with a draft.
    """
    if not isinstance(state, BoundedState):
        return widths.all
    found = tuple(width for width in widths.all if width <= state.width)
    if widths.drafts and max(found, default=0) < rows:
        raise CapabilityError(
            f"in a context of {state.capacity} tokens the engine takes at most {state.width} rows per pass, and "
            f"--reproducible needs {rows}: use a smaller --ctx-size or --draft-max"
        )
    return found


def widths_path(
    manifest: Manifest, card: ModelCard, *, engine: str, version: str, provider: str, adapter: AdapterUse | None = None
) -> Path | None:
    """Return the cache file for the widths of this pack's target on this engine; None: there is no cache folder."""
    graph = (card.rows, card.context, card.tree, card.kv_type, card.hidden_size, card.lora_rank, card.lora_modules)
    use = None if adapter is None else (adapter.digest, adapter.scale)
    settings = (provider, card.threads, card.kernels, graph, use, NARROW, WIDE)
    return measured_file(FOLDER, manifest, engine=engine, version=version, settings=settings)


def load_widths(path: Path | None) -> IdenticalWidths | None:
    """Return the widths stored at `path`; None if there are none or, with a notice, if the file is damaged."""
    try:
        if path is None:
            return None
        found = kept_json(path, IdenticalWidths)
        if found != IdenticalWidths(*(tuple(w for w in known if w in found.all) for known in (NARROW, WIDE))):
            raise ValueError(f"{str(found.all)[:80]} are not the widths that this version measures")
        return found
    except FileNotFoundError:
        return None
    except ValueError as error:
        notice(f"the widths measured earlier ({path}) cannot be used and are measured again: {error}")
        return None


def store_widths(path: Path, widths: IdenticalWidths) -> None:
    """Store widths; failure to write is ignored."""
    keep_json(path, asdict(widths))


def _known_widths(shared: Resources, adapter: AdapterUse | None) -> IdenticalWidths:
    """Return the cached widths, or measure and store them."""
    version, path = engine_version(shared.engine.name), None
    if version is not None:
        path = widths_path(
            shared.manifest,
            shared.target.card,
            engine=shared.engine.name,
            version=version,
            provider=shared.provider,
            adapter=adapter,
        )
    known = load_widths(path)
    if known is not None:
        return known
    found = measure_widths(
        shared.target,
        adapter=adapter,
        slow=lambda: notice("measuring once which pass widths give identical bits on this device"),
    )
    if path is not None:
        store_widths(path, found)
    return found
