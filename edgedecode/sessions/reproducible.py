"""What `--reproducible` pads its passes to: widths that are measured once for a pack on a device, and kept.

One small file in the user's cache for these weights, this engine and its version, these threads and this processor.
What cannot be read there is measured again with a notice, what cannot be written is measured every time.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import edgedecode
from edgedecode.adapters.pack_adapters import ActiveAdapter
from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.decoding.model import AdapterUse, ModelCard, State
from edgedecode.engines.hardware import cores, processor_facts
from edgedecode.engines.identical_widths import NARROW, WIDE, BoundedState, IdenticalWidths, measure_widths
from edgedecode.engines.selection import engine_version
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.pack.integrity import pack_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.sessions.resources import Resources
from edgedecode.user_notices import notice

__all__ = [
    "FOLDER",
    "fitting_widths",
    "limited_drafts",
    "load_widths",
    "session_widths",
    "store_widths",
    "widths_path",
]

FOLDER = "widths"


def session_widths(shared: Resources, options: SessionOptions, adapter: ActiveAdapter | None) -> IdenticalWidths:
    """Return the widths that these options pad to; none where nothing needs padding.

    Raises CapabilityError where reproducible text is wanted and no two widths agree.
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
    """Return the options with a draft length whose passes can be padded; `draft_max` is the one they mean.

    Raises CapabilityError for a length that was asked for and is too long.
    """
    if not widths.drafts or draft_max < (most := max(widths.drafts)):
        return options
    if options.draft_max is not None:
        raise CapabilityError(
            f"drafts of {draft_max} tokens need passes of {draft_max + 1} rows: with --reproducible this device allows "
            f"{most}, so give --draft-max {most - 1} at most"
        )
    return replace(options, draft_max=most - 1)


def fitting_widths(widths: IdenticalWidths, state: State, *, rows: int) -> tuple[int, ...]:
    """Return the widths that the engine reads in one pass on this state, `rows` being the widest pass with a draft.

    Raises CapabilityError where the engine splits those too.
    """
    if not isinstance(state, BoundedState):
        return widths.all
    found = tuple(width for width in widths.all if width <= state.width)
    if widths.drafts and max(found, default=0) < rows:
        raise CapabilityError(
            f"in a context of {state.capacity} tokens the engine reads {state.width} rows a pass at most, and "
            f"--reproducible needs {rows}: give a smaller --ctx-size or --draft-max"
        )
    return found


def widths_path(
    manifest: Manifest, card: ModelCard, *, engine: str, version: str, provider: str, adapter: AdapterUse | None = None
) -> Path | None:
    """Return where the widths of this pack's target on this engine are kept; None: nothing can be kept."""
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    graph = (card.rows, card.context, card.tree, card.kv_type, card.hidden_size, card.lora_rank, card.lora_modules)
    use = None if adapter is None else (adapter.digest, adapter.scale)
    settings = map(repr, (provider, card.threads, card.kernels, graph, use, NARROW, WIDE))
    facts = [edgedecode.__version__, pack_digest(manifest), engine, version, *settings, str(cores())]
    digest = hashlib.sha256("\n".join([*facts, *processor_facts()]).encode()).hexdigest()
    return folder / f"{digest[:24]}.json"


def load_widths(path: Path | None) -> IdenticalWidths | None:
    """Return what is kept at `path`; None for nothing, and with a notice for damage or another program's file."""
    try:
        if path is None:
            return None
        found = kept_json(path, IdenticalWidths)
        if found != IdenticalWidths(*(tuple(w for w in known if w in found.all) for known in (NARROW, WIDE))):
            raise ValueError(f"{str(found.all)[:80]} are not widths that are measured")
        return found
    except FileNotFoundError:
        return None
    except ValueError as error:
        notice(f"the widths measured earlier ({path}) cannot be used and are measured again: {error}")
        return None


def store_widths(path: Path, widths: IdenticalWidths) -> None:
    """Keep widths; where they cannot be written they are measured again."""
    keep_json(path, asdict(widths))


def _known_widths(shared: Resources, adapter: AdapterUse | None) -> IdenticalWidths:
    """Return what is kept, or measure now and keep it."""
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
        slow=lambda: notice("measuring which widths of a pass give identical bits on this device, once"),
    )
    if path is not None:
        store_widths(path, found)
    return found
