"""Ranks token ids for trimming: mandatory ids first, then by frequency in a text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import InputError
from edgedecode.pack.manifest import Generation
from edgedecode.text.tokenizer import Tokenizer

COVERAGE = 0.99
"""The least share of held-out tokens that the vocabulary of a chosen size has."""
_FRACTIONS = (2, 4, 8, 16)
"""Sizes to try, as fractions of the vocabulary."""
_STEP = 64
_RESERVE = 0.25
"""Share of the allowed misses that is kept in reserve. Higher: larger vocabularies are tried."""
_SIZES = (65536, 32768, 16384, 8192, 4096, 2048, 1024)
"""Sizes to try, in ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """All ids of the vocabulary, most important first: a trim of size N keeps the first N."""

    order: IntArray
    always: int
    """Number of leading ids that are kept at any size."""

    @property
    def vocabulary_size(self) -> int:
        return len(self.order)

    @property
    def places(self) -> IntArray:
        """Id → its position in the order: the id is kept at every size above it."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(len(self.order))
        return places

    def with_covering(self, sizes: Sequence[int], tokens: Sequence[int]) -> tuple[int, ...]:
        """Return these sizes and the smallest ones that cover enough of the tokens, just and with a reserve.

        A size that just covers enough of one text may cover too little of another.
        """
        shares = (COVERAGE, COVERAGE + _RESERVE * (1 - COVERAGE))
        found = (self.size_covering(tokens, share) for share in shares)
        return tuple(sorted({*sizes, *(size for size in found if size is not None)}))

    def size_covering(self, tokens: Sequence[int], share: float) -> int | None:
        """Return the smallest size, in steps of 64, that covers this share of the tokens; None: only the full one."""
        if not len(tokens):
            return None
        places = np.sort(self.places[np.asarray(tokens, np.int64)])
        needed = int(places[max(0, ceil(share * len(places)) - 1)]) + 1
        size = max(-(-needed // _STEP) * _STEP, self.always)
        return size if size < self.vocabulary_size else None

    def vocabulary(self, size: int) -> TrimmedVocabulary:
        """Return the vocabulary of this size. Raises InputError if the size is too small, or trims nothing."""
        if size < self.always:
            raise InputError(
                f"a size of {size} is too small: {self.always} special, added, end and byte tokens are always kept; "
                f"give {self.always} or more"
            )
        if size >= self.vocabulary_size:
            raise InputError(f"a size of {size} trims nothing: the vocabulary has {self.vocabulary_size} ids")
        return TrimmedVocabulary(np.sort(self.order[:size]), self.vocabulary_size)


def always_kept(tokenizer: Tokenizer, generation: Generation) -> frozenset[int]:
    """Return the ids that every trim keeps: added, special, BOS and end tokens, and byte tokens."""
    named = (tokenizer.token_to_id(token) for token in (generation.bos_token, generation.eos_token) if token)
    ends = {id for id in (*generation.end_token_ids, *named) if id is not None and id < tokenizer.size}
    return tokenizer.added_ids | tokenizer.special_ids | tokenizer.byte_ids() | ends


def rank_ids(texts: Iterable[Sequence[int]], *, always: frozenset[int], vocabulary_size: int) -> Ranking:
    """Rank ids by their frequency in these texts; ties, and ids that never occur, by id (BPE ids follow frequency).

    Raises InputError for an id outside the vocabulary.
    """
    counts = np.zeros(vocabulary_size, np.int64)
    for tokens in texts:
        if len(tokens) and not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
            raise InputError(f"a calibration text has ids outside the vocabulary of {vocabulary_size}")
        counts += np.bincount(np.asarray(tokens, np.int64), minlength=vocabulary_size)
    optional = np.ones(vocabulary_size, np.bool_)
    optional[list(always)] = False
    order = np.lexsort((np.arange(vocabulary_size), -counts, optional))
    return Ranking(order.astype(np.int64), len(always))


def sweep_sizes(*, vocabulary_size: int, always: int) -> tuple[int, ...]:
    """Return the sizes to try, ascending. Raises InputError for a vocabulary too small to be trimmed."""
    tried = {vocabulary_size // fraction for fraction in _FRACTIONS} | set(_SIZES)
    sizes = tuple(sorted(size for size in tried if always <= size < vocabulary_size))
    if not sizes:
        raise InputError(
            f"a vocabulary of {vocabulary_size} ids, {always} of which must be kept, is too small to be trimmed"
        )
    return sizes
