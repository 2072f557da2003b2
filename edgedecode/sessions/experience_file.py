"""Keep the costs and acceptance rates of a pack on this device in the user's cache between runs.

There is one small file per weights, engine version, threads and processor. A file that cannot be read is measured again
with a notice; failure to write is ignored.
"""

from collections.abc import Sequence
from pathlib import Path

import edgedecode
from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.hardware import cores, processor_facts
from edgedecode.pack.integrity import pack_digest
from edgedecode.pack.manifest import Manifest
from edgedecode.schedule.experience import Experience
from edgedecode.user_notices import notice

FOLDER = "costs"
FORMAT = 4


def experience_path(manifest: Manifest, *, engine: str, version: str, settings: Sequence[object]) -> Path | None:
    """Return the cache file of this pack's experience on this engine; None: there is no cache folder.

    settings: what else the cost of a forward pass depends on (provider, threads, KV type).
    """
    folder = cache_folder(FOLDER)
    facts = (pack_digest(manifest), engine, version, *map(repr, settings), cores(), *processor_facts())
    return folder and folder / f"{facts_key(edgedecode.__version__, *facts)}.json"


def load_experience(path: Path | None) -> Experience:
    """Return the experience stored at `path`, doubted; an empty one if there is none, for a damaged file with a notice.

    It may have been measured beside other work.
    """
    try:
        if path is None:
            return Experience()
        value = kept_json(path, dict)
        if value.get("edgedecode_costs") != FORMAT:
            raise ValueError("it has another format than this version writes")
        experience = Experience.from_dict(value)
        experience.doubt()
        return experience
    except FileNotFoundError:
        return Experience()
    except ValueError as error:
        notice(f"the costs measured earlier ({path}) cannot be used and are measured again: {error}")
        return Experience()


def store_experience(path: Path, experience: Experience) -> None:
    """Store an experience; failure to write is ignored."""
    keep_json(path, {"edgedecode_costs": FORMAT, **experience.as_dict()})
