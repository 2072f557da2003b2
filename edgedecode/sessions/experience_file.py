"""What was learnt of a pack on this device, kept in the user's cache from one run to the next.

One small file for these weights, this engine and its version, these threads and this processor. A cache is never
needed: what cannot be read is begun afresh with a notice, what cannot be written is learnt again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import edgedecode
from edgedecode.cache import cache_folder, keep_json, kept_json
from edgedecode.engines.hardware import cores, processor_facts
from edgedecode.pack.integrity import pack_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.schedule.experience import Experience
from edgedecode.user_notices import notice

__all__ = ["FOLDER", "experience_path", "load_experience", "store_experience"]

FOLDER = "costs"
FORMAT = 4


def experience_path(manifest: Manifest, *, engine: str, version: str, settings: Sequence[object]) -> Path | None:
    """Return where the experience of this pack on this engine is kept; None: nothing can be kept.

    settings: what else a pass's cost depends on (provider, threads, type of keys and values).
    """
    folder = cache_folder(FOLDER)
    if folder is None:
        return None
    facts = [edgedecode.__version__, pack_digest(manifest), engine, version, *map(repr, settings), str(cores())]
    digest = hashlib.sha256("\n".join([*facts, *processor_facts()]).encode()).hexdigest()
    return folder / f"{digest[:24]}.json"


def load_experience(path: Path | None) -> Experience:
    """Return what is kept at `path`; nothing is an ordinary answer, damage or another program's file gives a notice."""
    try:
        if path is None:
            return Experience()
        value = kept_json(path, dict)
        if value.get("edgedecode_costs") != FORMAT:
            raise ValueError("it is not what this version writes")
        return Experience.from_dict(value)
    except FileNotFoundError:
        return Experience()
    except ValueError as error:
        notice(f"the costs measured earlier ({path}) cannot be used and are measured again: {error}")
        return Experience()


def store_experience(path: Path, experience: Experience) -> None:
    """Keep an experience; where it cannot be written it is learnt again."""
    keep_json(path, {"edgedecode_costs": FORMAT, **experience.as_dict()})
