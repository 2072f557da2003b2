"""A pack's tokenizer, and what the process holds before a model is open."""

from __future__ import annotations

from pathlib import Path

from edgedecode.errors import CapabilityError, IncompatiblePair, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.memory.footprint import Holder
from edgedecode.memory.process_memory import peak_nbytes, release_pages, resident_nbytes
from edgedecode.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from .manifest import Manifest

__all__ = ["PROCESS", "pack_tokenizer", "process_holder", "process_nbytes", "target_nbytes"]

PROCESS = "process (interpreter, engine, tokenizer)"
"""The lease over what the process holds before a model is open."""
READING_SHARE = 18
"""Times its file's size that a tokenizer takes while it is read: 13 to 17.4 were measured."""


def process_nbytes(budget: Budget) -> int:
    """Return what this process holds already; where only its peak is told, that."""
    nbytes = resident_nbytes() or peak_nbytes()
    if nbytes is None and budget.limit_nbytes is not None:
        raise CapabilityError(
            "this system does not tell how much memory the process holds, so --memory cannot be kept: "
            "pip install 'edgedecode[measure]'"
        )
    return nbytes or 0


def process_holder(tokenizer: Tokenizer, budget: Budget | None = None) -> Holder:
    """Return what this process holds now, and what its tokenizer keeps later."""
    return Holder(PROCESS, process_nbytes(budget or Budget()) + tokenizer.cache_nbytes)


def target_nbytes(manifest: Manifest) -> int:
    """Return what the target's weights take at least."""
    weights = manifest.files.get(manifest.models["target"].weights)
    return 0 if weights is None else weights.nbytes


def pack_tokenizer(manifest: Manifest, root: Path, budget: Budget) -> Tokenizer:
    """Load the tokenizer with the pack's template, and check that it is the one the models were exported with.

    budget: what nothing else has been leased of yet.
    """
    generation = manifest.generation
    source = PLAIN_TEMPLATE
    if manifest.chat_template is not None:
        try:
            source = (root / manifest.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"the chat template {root / manifest.chat_template} cannot be read: {error}") from None
    reading = READING_SHARE * manifest.files[manifest.tokenizer].nbytes
    template = ChatTemplate(source, bos_token=generation.bos_token, eos_token=generation.eos_token)
    weights = target_nbytes(manifest)
    with (
        budget.reserve(PROCESS, process_nbytes(budget), fixed=True, following=max(reading, weights)),
        budget.reserve("reading the tokenizer", reading, fixed=True, following=max(0, weights - reading)),
    ):
        tokenizer = Tokenizer.from_file(root / manifest.tokenizer, chat_template=template)
        release_pages()  # of what reading took: else they count for the process, and the models' once more
    # The file's content was checked against the manifest; its identity digest takes a second on large vocabularies.
    if tokenizer.size != manifest.vocabulary_size:
        raise IncompatiblePair(
            f"{root / manifest.tokenizer} has {tokenizer.size} tokens, the pack was exported with "
            f"{manifest.vocabulary_size}: export the pack again"
        )
    return tokenizer
