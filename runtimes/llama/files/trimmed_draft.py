"""Find a pack's trimmed draft: its GGUF file, the map of its rows, and the full draft for its embedding rows.

If the pack has no trimmed file, it is sliced from the full draft on first use and cached.
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

MIB = 2**20
MAKING_NBYTES = 8 * MIB
TOKEN_NBYTES = 200
"""Memory for slicing: a few pieces of the file, and per token of the full vocabulary its text and merges."""
COMPARED = 16
"""Number of rows of the file that are compared with the full draft's."""


@dataclass(frozen=True, slots=True)
class TrimmedDraft:
    """A draft at `path` that only generates the ids of `vocabulary`; its input rows come from the `full` draft."""

    path: Path
    vocabulary: TrimmedVocabulary
    full: Path
    contents: Contents
    """Of the full draft's file."""


def check_trim(entry: ModelEntry, *, name: str) -> None:
    """Raise CapabilityError if the manifest entry shows that there is no trimmed draft for this engine."""
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
            f"llama.cpp cannot take embeddings as input for the model {name} ({architecture}), as its trimmed draft "
            f"needs: use --runtime onnx"
        )


def find_trimmed(entry: ModelEntry, root: Path, *, name: str, vocabulary_size: int, budget: Budget) -> TrimmedDraft:
    """Return the pack's trimmed draft after checking it; its file is built if it is missing.

    Raises ManifestError for a map or a file that does not match the others, CapabilityError if the file cannot be
    built, BudgetExceeded.
    """
    check_trim(entry, name=name)
    trim = entry.trim
    assert trim is not None
    vocabulary = read_token_ids(root / trim.token_ids, rows=trim.size, vocabulary_size=min(entry.rows, vocabulary_size))
    full = gguf_path(entry, root, name=name, budget=budget)
    contents = read_contents(full)
    header = header_of(contents, full)
    check_header(header, entry, path=full)
    _check_fed(header.architecture, name=name)  # the manifest may name an unknown model class
    path = root / trim.gguf
    if not trim.gguf:
        path = _sliced(entry, root, full, vocabulary=vocabulary, name=name, budget=budget)
    _check_belongs(path, full, contents, vocabulary)
    return TrimmedDraft(path, vocabulary, full, contents)


def _sliced(
    entry: ModelEntry, root: Path, full: Path, *, vocabulary: TrimmedVocabulary, name: str, budget: Budget
) -> Path:
    """Return the cached file that is sliced from the full one."""

    def make(out: Path) -> None:
        with out.open("wb") as file:
            write_trimmed(file, full, vocabulary)

    recipe = Recipe(
        name=f"trimmed {name}",
        owner=f"{root.resolve()}:{name}:trimmed",
        nbytes=MAKING_NBYTES + TOKEN_NBYTES * entry.rows,
        make=make,
    )
    key = facts_key(edgedecode.__version__, gguf_key(Manifest.load(root), root, name), map_sha256(vocabulary.ids))
    return kept_file(key, recipe, budget=budget)


def _check_belongs(path: Path, full: Path, contents: Contents, vocabulary: TrimmedVocabulary) -> None:
    """Raise ManifestError unless the file belongs to this map and this draft, of which some rows are compared."""
    trimmed = read_contents(path)
    if trimmed.fields.get(TRIM_KEY) != map_sha256(vocabulary.ids):
        raise ManifestError(f"{path} was not trimmed with the pack's map: run `edgedecode trim` again")
    mine, theirs = trimmed.tensors.get(EMBEDDING), contents.tensors[EMBEDDING]
    if mine is None or mine.shape != (theirs.shape[0], len(vocabulary)) or mine.type != theirs.type:
        raise ManifestError(f"{path} has another shape or type than {full}: run `edgedecode trim` again")
    rows = np.unique(np.linspace(0, len(vocabulary) - 1, COMPARED).astype(np.int64))
    pairs = zip(rows.tolist(), vocabulary.ids[rows].tolist(), strict=True)
    with path.open("rb") as small, full.open("rb") as large:
        for row, id in pairs:
            small.seek(_offset(trimmed, mine, row=row))
            large.seek(_offset(contents, theirs, row=id))
            nbytes = mine.nbytes // len(vocabulary)
            if small.read(nbytes) != large.read(nbytes):
                raise ManifestError(f"{path} was made from another draft than {full}: run `edgedecode trim` again")


def _offset(contents: Contents, tensor: Tensor, *, row: int) -> int:
    return contents.start + tensor.offset + row * (tensor.nbytes // tensor.shape[-1])
