"""edgedecode: run small language models on the device, speculatively, inside a memory budget, never silently lossy.

Names load when they are first used, so that the command line answers before numpy and tokenizers are read.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgedecode.errors import (
        BudgetExceeded,
        CapabilityError,
        ContextExceeded,
        EdgeDecodeError,
        ExportError,
        IncompatiblePair,
        InputError,
        ManifestError,
        RuntimeUnavailable,
    )
    from edgedecode.loop import DecodeSetting, decode
    from edgedecode.messages import Message
    from edgedecode.options import SessionOptions
    from edgedecode.pair import Pair, load
    from edgedecode.reply import Chunk, Completion
    from edgedecode.sampling import SamplingOptions
    from edgedecode.session import Session
    from edgedecode.stats import Stats
    from edgedecode.types import Draft, FinishReason
    from edgedecode.verify import Rule

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "CapabilityError",
    "Chunk",
    "Completion",
    "ContextExceeded",
    "DecodeSetting",
    "Draft",
    "EdgeDecodeError",
    "ExportError",
    "FinishReason",
    "IncompatiblePair",
    "InputError",
    "ManifestError",
    "Message",
    "Pair",
    "Rule",
    "RuntimeUnavailable",
    "SamplingOptions",
    "Session",
    "SessionOptions",
    "Stats",
    "decode",
    "load",
]

_HOMES = {
    "errors": (
        "BudgetExceeded",
        "CapabilityError",
        "ContextExceeded",
        "EdgeDecodeError",
        "ExportError",
        "IncompatiblePair",
        "InputError",
        "ManifestError",
        "RuntimeUnavailable",
    ),
    "loop": ("DecodeSetting", "decode"),
    "messages": ("Message",),
    "options": ("SessionOptions",),
    "pair": ("Pair", "load"),
    "reply": ("Chunk", "Completion"),
    "sampling": ("SamplingOptions",),
    "session": ("Session",),
    "stats": ("Stats",),
    "types": ("Draft", "FinishReason"),
    "verify": ("Rule",),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            value: object = getattr(import_module(f"{__name__}.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
