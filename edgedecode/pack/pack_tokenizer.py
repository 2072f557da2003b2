"""Loads a pack's tokenizer, and accounts for the memory of the process before a model is open."""

from pathlib import Path

from edgedecode.errors import CapabilityError, IncompatiblePair, ManifestError, cause
from edgedecode.memory.budget import PROCESS, TOKENIZER, Budget, Holder
from edgedecode.memory.process_memory import held_nbytes, release_pages
from edgedecode.sampling.row_draw import SCRATCH_NBYTES
from edgedecode.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from edgedecode.text.tokenizer import CACHE_NBYTES, Tokenizer

from .entries import DRAFT
from .manifest import Manifest

READING_SHARE = 18
"""Memory to load a tokenizer, as a multiple of its file's size: 13 to 17.4 were measured."""
HELD_SHARE = 9
"""Memory that a tokenizer keeps, likewise."""
_ROW_NBYTES = SCRATCH_NBYTES + 8
"""Memory for sampling from a row, per token, and for a map to another id."""


def process_nbytes(budget: Budget) -> int:
    """Return the resident memory of this process, or its peak where the system reports only that."""
    nbytes = held_nbytes()
    if nbytes is None and budget.limit_nbytes is not None:
        raise CapabilityError(
            "this system does not report how much memory the process uses, so --memory cannot be enforced: "
            "pip install 'edgedecode[measure]'"
        )
    return nbytes or 0


def process_holder(tokenizer: Tokenizer, manifest: Manifest, budget: Budget) -> Holder:
    """Return the memory of this process now, plus the later cache of its tokenizer.

    A shared budget leases the process apart, which is measured here unless other packs are open.
    """
    if budget.shared is None:
        return Holder(PROCESS, process_nbytes(budget) + tokenizer.cache_nbytes)
    held = HELD_SHARE * manifest.files[manifest.tokenizer].nbytes
    budget.shared.count_program(process_nbytes(budget) - held)
    return Holder(TOKENIZER, held + tokenizer.cache_nbytes)


def draft_tokenizer_holder(manifest: Manifest) -> Holder:
    """Return the memory of the draft's own tokenizer, and of sampling from its rows; 0 bytes if it has none."""
    draft = manifest.models.get(DRAFT)
    if draft is None or not draft.own_tokenizer:
        return Holder(f"tokenizer:{DRAFT}", 0)
    held = HELD_SHARE * manifest.files[draft.own_tokenizer].nbytes
    return Holder(f"tokenizer:{DRAFT}", held + CACHE_NBYTES + _ROW_NBYTES * draft.rows)


def draft_tokenizer(manifest: Manifest, root: Path, budget: Budget) -> Tokenizer:
    """Load the draft's own tokenizer. Raises ManifestError, BudgetExceeded."""
    name = manifest.models[DRAFT].own_tokenizer
    with budget.reserve(f"reading:{DRAFT}", (READING_SHARE - HELD_SHARE) * manifest.files[name].nbytes):
        tokenizer = Tokenizer.from_file(root / name)
        release_pages()
    return tokenizer


def target_nbytes(manifest: Manifest) -> int:
    """Return a lower bound of the memory of the target's weights."""
    weights = manifest.files.get(manifest.models["target"].weights)
    return 0 if weights is None else weights.nbytes


def pack_tokenizer(manifest: Manifest, root: Path, budget: Budget) -> Tokenizer:
    """Load the tokenizer with the pack's template, and check that the models were exported with it.

    budget: must have no leases yet. Beside other packs the process is leased already.
    """
    generation = manifest.generation
    source = PLAIN_TEMPLATE
    if manifest.chat_template is not None:
        try:
            source = (root / manifest.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(
                f"the chat template {root / manifest.chat_template} cannot be read: {cause(error)}"
            ) from None
    reading = READING_SHARE * manifest.files[manifest.tokenizer].nbytes
    template = ChatTemplate(source, bos_token=generation.bos_token, eos_token=generation.eos_token)
    weights, program = target_nbytes(manifest), process_nbytes(budget)
    if budget.shared is not None:
        budget.shared.count_program(program)
        program = 0
    with (
        budget.reserve(PROCESS, program, fixed=True, following=max(reading, weights)),
        budget.reserve("reading the tokenizer", reading, fixed=True, following=max(0, weights - reading)),
    ):
        tokenizer = Tokenizer.from_file(root / manifest.tokenizer, chat_template=template)
        release_pages()  # else pages freed after loading count for the process, and again when the models reuse them
    # check_files verified the content; the tokenizer's identity digest would take a second on a large vocabulary.
    if tokenizer.size != manifest.vocabulary_size:
        raise IncompatiblePair(
            f"{root / manifest.tokenizer} has {tokenizer.size} tokens, the pack was exported with "
            f"{manifest.vocabulary_size}: export the pack again"
        )
    return tokenizer
