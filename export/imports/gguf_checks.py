"""What llama.cpp says of an imported file, where it runs here: that it opens, how it reads texts, how it rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgedecode.engines.registry import find_runtime
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.pack.manifest import Generation, ModelEntry
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from ..checks.model_checks import CheckTexts, noise_of, opened, with_noise
from ..gguf.pretokenizers import splits_of
from ..gguf.tokenizer_check import compare_reading
from ..graph.graph_request import LEAST_CONTEXT
from .gguf_source import GgufSource
from .gguf_tokenizer import ImportedTokenizer

__all__ = ["engine_fault", "measured_noise", "try_file"]

_RUNTIME = "llama"


@dataclass(frozen=True, slots=True)
class Opening:
    """Sentences for the user, and numbers that were measured."""

    notes: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)


def engine_fault() -> str | None:
    """Return why llama.cpp cannot be used here; None: it can. A child process tries it."""
    try:
        device = next(iter(find_runtime(_RUNTIME).devices()))
    except RuntimeUnavailable as error:
        return str(error)
    return None if device.available else device.reason


def try_file(source: GgufSource, tokenizer: ImportedTokenizer) -> Opening:
    """Open the file in a child process and compare how texts are read. Raises ExportError where it cannot be opened."""
    splits = splits_of(source.vocabulary.pre)
    try:
        reading = compare_reading(
            source.path, tokenizer.inner(), normal_form=splits.normal_form if splits is not None else ""
        )
    except ExportError as error:
        raise ExportError(f"{source.name} cannot be used: {error}") from None
    return Opening(reading.notes, reading.measured)


def measured_noise(
    entry: ModelEntry,
    pack: Path,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    generation: Generation,
    positions: int,
    progress: Callable[[int], None],
) -> ModelEntry:
    """Return the entry with its kernels' noise, or with a note on why that cannot be measured."""
    if entry.context < LEAST_CONTEXT:
        return _unmeasured(entry, f"its context of {entry.context} is too short")
    ends = generation.end_token_ids
    texts = replace(
        CheckTexts.of(tokenizer, template=template, ends=ends, context=entry.context), noise_positions=positions
    )
    try:
        with opened(entry, pack, texts, runtime=_RUNTIME) as model:
            if not model.card.rollback:
                return _unmeasured(entry, "its recurrent layers read row by row")
            return with_noise(entry, noise_of(model, texts, progress=progress))
    except RuntimeUnavailable as error:
        return _unmeasured(entry, str(error))


def _unmeasured(entry: ModelEntry, reason: str) -> ModelEntry:
    return replace(entry, notes=(*entry.notes, f"kernel noise was not measured: {reason}"))
