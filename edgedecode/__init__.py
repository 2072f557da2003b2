"""edgedecode: run small language models on the device, speculatively, inside a memory budget, never silently lossy."""

from edgedecode.decode import DecodeSetting, decode
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
from edgedecode.messages import Message
from edgedecode.pair import Pair, load
from edgedecode.sampling import SamplingOptions
from edgedecode.session import Chunk, Completion, Session, SessionOptions
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
