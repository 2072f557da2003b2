"""The trimmed draft of a pack for this engine: its own file, the map of its rows, the whole draft that feeds it.

The file is the pack's; where the pack holds none it is sliced from the whole one at first use and kept in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import edgedecode
from edgedecode.cache import facts_key
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.gguf.contents import Contents, Tensor, read_contents
from edgedecode.gguf.gguf_names import gguf_name
from edgedecode.gguf.header import EMBEDDING, header_of
from edgedecode.gguf.trimmed_gguf import FED, TRIM_KEY, map_sha256, write_trimmed
from edgedecode.memory.budget import Budget
from edgedecode.pack.gguf_check import check_header
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.token_map import read_token_ids

from .cached_gguf import Recipe, gguf_key, gguf_path, kept_file

__all__ = ["TrimmedDraft", "check_trim", "find_trimmed"]

MIB = 2**20
MAKING_NBYTES = 8 * MIB
TOKEN_NBYTES = 200
"""What slicing holds: a few pieces of the file, and the texts of the whole vocabulary and its merges."""
COMPARED = 16
"""So many of the file's rows are compared with those they should come from."""


@dataclass(frozen=True, slots=True)
class TrimmedDraft:
    """A draft that says the ids of `vocabulary` alone: the file at `path`, fed from that of the whole draft."""

    path: Path
    vocabulary: TrimmedVocabulary
    whole: Path
    contents: Contents
    """Of the whole draft's file."""


def check_trim(entry: ModelEntry, *, name: str) -> None:
    """Raise CapabilityError where the entry alone says that there is no trimmed draft here."""
    if entry.trim is None:
        raise CapabilityError(
            f"the pack has no trimmed vocabulary of the model {name}: run `edgedecode trim` on it first"
        )
    architecture = gguf_name(entry.architecture)
    if architecture is not None:
        _check_fed(architecture, name=name)


def _check_fed(architecture: str, *, name: str) -> None:
    if architecture not in FED:
        raise CapabilityError(
            f"llama.cpp cannot be fed with embeddings of the model {name} ({architecture}), as its trimmed draft must "
            f"be: use --runtime onnx"
        )


def find_trimmed(entry: ModelEntry, root: Path, *, name: str, vocabulary_size: int, budget: Budget) -> TrimmedDraft:
    """Return the pack's trimmed draft, checked; its file is made if there is none yet.

    Raises ManifestError for a map or a file that does not fit the others, CapabilityError where nothing can be made,
    BudgetExceeded.
    """
    check_trim(entry, name=name)
    trim = entry.trim
    assert trim is not None
    vocabulary = read_token_ids(root / trim.token_ids, rows=trim.size, vocabulary_size=min(entry.rows, vocabulary_size))
    whole = gguf_path(entry, root, name=name, budget=budget)
    contents = read_contents(whole)
    header = header_of(contents, whole)
    check_header(header, entry, path=whole)
    _check_fed(header.architecture, name=name)  # the manifest may name a class that nobody knows
    path = root / trim.gguf
    if not trim.gguf:
        path = _made(entry, root, whole, vocabulary=vocabulary, name=name, budget=budget)
    _check_belongs(path, whole, contents, vocabulary)
    return TrimmedDraft(path, vocabulary, whole, contents)


def _made(
    entry: ModelEntry, root: Path, whole: Path, *, vocabulary: TrimmedVocabulary, name: str, budget: Budget
) -> Path:
    """Return the file in the user's cache that is sliced from the whole one."""

    def make(out: Path) -> None:
        with out.open("wb") as file:
            write_trimmed(file, whole, vocabulary)

    recipe = Recipe(
        name=f"trimmed {name}",
        owner=f"{root.resolve()}:{name}:trimmed",
        nbytes=MAKING_NBYTES + TOKEN_NBYTES * entry.rows,
        make=make,
    )
    key = facts_key(edgedecode.__version__, gguf_key(Manifest.load(root), root, name), map_sha256(vocabulary.ids))
    return kept_file(key, recipe, budget=budget)


def _check_belongs(path: Path, whole: Path, contents: Contents, vocabulary: TrimmedVocabulary) -> None:
    """Raise ManifestError unless the file was made of this map and of this draft, as far as some rows tell."""
    trimmed = read_contents(path)
    if trimmed.fields.get(TRIM_KEY) != map_sha256(vocabulary.ids):
        raise ManifestError(f"{path} was not trimmed by the pack's map: run `edgedecode trim` again")
    mine, theirs = trimmed.tensors.get(EMBEDDING), contents.tensors[EMBEDDING]
    if mine is None or mine.shape != (theirs.shape[0], len(vocabulary)) or mine.type != theirs.type:
        raise ManifestError(f"{path} is of another shape or type than {whole}: run `edgedecode trim` again")
    rows = np.unique(np.linspace(0, len(vocabulary) - 1, COMPARED).astype(np.int64))
    pairs = zip(rows.tolist(), vocabulary.ids[rows].tolist(), strict=True)
    with path.open("rb") as small, whole.open("rb") as large:
        for row, id in pairs:
            small.seek(_place(trimmed, mine, row=row))
            large.seek(_place(contents, theirs, row=id))
            nbytes = mine.nbytes // len(vocabulary)
            if small.read(nbytes) != large.read(nbytes):
                raise ManifestError(f"{path} was made of another draft than {whole}: run `edgedecode trim` again")


def _place(contents: Contents, tensor: Tensor, *, row: int) -> int:
    return contents.start + tensor.offset + row * (tensor.nbytes // tensor.shape[-1])
