"""A language model in a GGUF file that someone else made, checked before anything is done with it. Runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edgedecode.errors import ExportError, ManifestError
from edgedecode.gguf.contents import Contents, read_contents
from edgedecode.gguf.header import Header, header_of

from ...gguf.specials import Specials
from ...gguf.vocabulary import Vocabulary
from .metadata import Metadata
from .vocabulary import read_specials, read_vocabulary

__all__ = ["GgufSource", "open_contents", "open_gguf_source"]

_ENCODERS = re.compile(r".*bert.*|t5(encoder)?|clip|.*embedding|wavtokenizer-dec|dream|llada(-moe)?|rnd1")
"""Architectures that read texts, or fill gaps in them, but do not write on."""
_PHI3 = re.compile(r"phi-?3", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A file whose header has been found sound."""

    path: Path
    """Absolute, links resolved."""
    name: str
    """The file's name as it was given."""
    metadata: Metadata
    header: Header
    vocabulary: Vocabulary
    specials: Specials

    @property
    def contents(self) -> Contents:
        return self.metadata.contents

    @property
    def license(self) -> str:
        return self.metadata.text("general.license") or "unknown"

    @property
    def strips(self) -> bool:
        """Whether special tokens take the spaces after them: llama.cpp asks the model's name for Phi-3's."""
        return _PHI3.search(self.metadata.text("general.name")) is not None


def open_gguf_source(path: Path) -> GgufSource:
    """Read and check the header of the model in `path`. Raises ExportError: one line that says what to do."""
    contents = open_contents(path)
    metadata, name = Metadata(contents), path.name
    _check_kind(metadata, path)
    try:
        header = header_of(contents, path)
    except ManifestError as error:
        raise ExportError(str(error)) from None
    if not header.context:
        raise ExportError(f"{path} does not say how long its context is: convert it again")
    vocabulary = read_vocabulary(metadata, name=name)
    if len(vocabulary.tokens) > header.rows:
        raise ExportError(f"{path} lists {len(vocabulary.tokens)} tokens for {header.rows} rows: convert it again")
    return GgufSource(
        path=path.resolve(),
        name=name,
        metadata=metadata,
        header=header,
        vocabulary=vocabulary,
        specials=read_specials(metadata, vocabulary, name=name),
    )


def open_contents(path: Path) -> Contents:
    """Read all of a file but its data. Raises ExportError for one that is missing, damaged, foreign, newer or split."""
    if path.is_dir():
        raise ExportError(f"{str(path)!r} is a folder: give the GGUF file in it")
    if not path.is_file():
        raise ExportError(f"there is no file {str(path)!r}: give a GGUF file")
    if not str(path.resolve()).isprintable() or {":", "\\"} & set(path.resolve().name):
        raise ExportError(f"{str(path)!r} has a name that a pack cannot hold: rename it")
    try:
        return read_contents(path, arrays=True)
    except ManifestError as error:
        raise ExportError(str(error)) from None


def _check_kind(metadata: Metadata, path: Path) -> None:
    """Refuse files of other kinds, and models that do not write texts."""
    kind = metadata.text("general.type") or "model"
    if kind == "adapter":
        raise ExportError(f"{path} is an adapter: give it with --adapter NAME={path.name}, and its model with --target")
    if kind != "model":
        raise ExportError(f"{path} holds no language model but is of the type {kind!r}: give the model's file")
    architecture = metadata.text("general.architecture")
    pooled = metadata.integer(f"{architecture}.pooling_type")
    causal = metadata.flag(f"{architecture}.attention.causal", usual=True)
    if _ENCODERS.fullmatch(architecture) or pooled or not causal:
        raise ExportError(f"{path} holds an encoder ({architecture}), which writes no text: give a decoder's file")
