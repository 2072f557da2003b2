"""edgedecode: run small language models on the device, speculatively, inside a memory budget, never silently lossy.

Names are imported at first use, so that the command line responds before numpy and tokenizers are imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgedecode.decoding.drafts import Draft
    from edgedecode.decoding.loop import DecodeSetting, decode
    from edgedecode.decoding.stats import FinishReason, Stats
    from edgedecode.decoding.verify import Rule
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
    from edgedecode.open_pack import LoadOptions, load
    from edgedecode.options import SessionDetails, SessionOptions, SwitchOptions, WhenFull
    from edgedecode.pair import Pair
    from edgedecode.plan_pack import plan
    from edgedecode.sampling.log_probabilities import TokenLogprob
    from edgedecode.sampling.weights import SamplingOptions
    from edgedecode.sessions.chunks import Chunk, Completion, TurnsDropped
    from edgedecode.sessions.scored import Scored
    from edgedecode.sessions.session import Session
    from edgedecode.structured.given import Candidate, Checked, TokenSet
    from edgedecode.text.messages import Message

__version__ = "0.1.0"

__all__ = [
    "BudgetExceeded",
    "Candidate",
    "CapabilityError",
    "Checked",
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
    "LoadOptions",
    "ManifestError",
    "Message",
    "Pair",
    "Rule",
    "RuntimeUnavailable",
    "SamplingOptions",
    "Scored",
    "Session",
    "SessionDetails",
    "SessionOptions",
    "Stats",
    "SwitchOptions",
    "TokenLogprob",
    "TokenSet",
    "TurnsDropped",
    "WhenFull",
    "decode",
    "load",
    "plan",
]

_MODULES = {
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
    "decoding.loop": ("DecodeSetting", "decode"),
    "text.messages": ("Message",),
    "options": ("SessionDetails", "SessionOptions", "SwitchOptions", "WhenFull"),
    "open_pack": ("LoadOptions", "load"),
    "pair": ("Pair",),
    "plan_pack": ("plan",),
    "sessions.chunks": ("Chunk", "Completion", "TurnsDropped"),
    "sampling.log_probabilities": ("TokenLogprob",),
    "sampling.weights": ("SamplingOptions",),
    "sessions.scored": ("Scored",),
    "sessions.session": ("Session",),
    "structured.given": ("Candidate", "Checked", "TokenSet"),
    "decoding.stats": ("FinishReason", "Stats"),
    "decoding.drafts": ("Draft",),
    "decoding.verify": ("Rule",),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            value: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
