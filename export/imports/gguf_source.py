"""Reads and checks a user's GGUF file: the model, its generation defaults and weight widths."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import ENCODERS, PER_LAYER_TABLE
from edgedecode.gguf.contents import BLOCKS, TYPE_NAMES, Contents, Tensor, read_contents
from edgedecode.gguf.header import EMBEDDING, OUTPUT, Header, header_of
from edgedecode.pack.manifest import Generation
from edgedecode.sampling.weights import sampling_table
from edgedecode.text.chat_template import ChatTemplate

from ..frameworks import refused
from ..gguf.specials import PHI3, Specials
from ..gguf.vocabulary import Vocabulary
from ..pack_texts import compiled_template
from .gguf_vocabulary import Metadata, read_specials, read_vocabulary
from .imported_pack import WeightWidths

_SAMPLING = "general.sampling."


@dataclass(frozen=True, slots=True)
class GgufSource:
    """A file whose header has been checked."""

    path: Path
    """Absolute, with links resolved."""
    name: str
    """The file name that the user gave."""
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
        """Whether special tokens absorb following spaces, as Phi-3's do. llama.cpp decides this by the model's name."""
        return PHI3.search(self.metadata.text("general.name")) is not None


def open_gguf_source(path: Path) -> GgufSource:
    """Read and check the header of the model in `path`. Raises ExportError."""
    contents = open_contents(path)
    metadata, name = Metadata(contents), path.name
    _check_kind(metadata, path)
    with refused():
        header = header_of(contents, path)
    if not header.context:
        raise ExportError(f"{path} does not declare its context length: download or convert it again")
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
    """Read a file except its tensor data. Raises ExportError if it is missing, damaged, not GGUF, too new or split."""
    if path.is_dir():
        raise ExportError(f"{str(path)!r} is a folder: give the GGUF file in it")
    if not path.is_file():
        raise ExportError(f"there is no file {str(path)!r}: give a GGUF file")
    if not str(path.resolve()).isprintable() or {":", "\\"} & set(path.resolve().name):
        raise ExportError(f"{str(path)!r} has a name that a pack cannot store: rename it")
    with refused():
        return read_contents(path, arrays=True)


def _check_kind(metadata: Metadata, path: Path) -> None:
    """Raise ExportError for files that hold no model, and for models that do not generate text."""
    kind = metadata.text("general.type") or "model"
    if kind == "adapter":
        raise ExportError(f"{path} is an adapter: import its model, then give it to `edgedecode adapter add`")
    if kind != "model":
        raise ExportError(f"{path} is not a language model but of the type {kind!r}: give the model's file")
    architecture = metadata.text("general.architecture")
    pooled = metadata.integer(f"{architecture}.pooling_type")
    causal = metadata.flag(f"{architecture}.attention.causal", usual=True)
    if ENCODERS.fullmatch(architecture) or pooled or not causal:
        raise ExportError(f"{path} is an encoder ({architecture}), which does not generate text: give a decoder's file")


def read_gguf_generation(source: GgufSource) -> Generation:
    """Collect end tokens, and the sampling values that newer files have; values out of range are left out."""
    tokens, specials, metadata = source.vocabulary.tokens, source.specials, source.metadata
    given = {
        option: (metadata.integer if option.whole else metadata.number)(_SAMPLING + option.gguf)
        for option in sampling_table()
        if option.gguf
    }
    return Generation(
        end_token_ids=specials.ends,
        bos_token="" if specials.beginning is None else tokens[specials.beginning],
        eos_token=tokens[specials.ends[0]] if specials.ends else "",
        sampling={option.name: value for option, value in given.items() if value is not None and option.allows(value)},
    )


def read_gguf_template(source: GgufSource, generation: Generation) -> ChatTemplate | None:
    """Return the chat template, or None without one. Raises ExportError if it does not compile."""
    text = source.metadata.text("tokenizer.chat_template")
    return compiled_template(text, generation, name=source.name) if text else None


def read_widths(tensors: Mapping[str, Tensor]) -> WeightWidths:
    """Summarize the types of a file's tensors, given by name."""
    counted: Counter[int] = Counter()
    for tensor in tensors.values():
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            counted[tensor.type] += prod(tensor.shape)
    kinds = [kind for kind, _ in counted.most_common()] or [tensors[EMBEDDING].type]
    block = BLOCKS[kinds[0]][0]
    return WeightWidths(
        parameters=sum(prod(each.shape) for each in tensors.values() if each.name != PER_LAYER_TABLE),
        bits=_bits(kinds[0]),
        block_size=block if block > 1 else 0,
        head_bits=_bits(tensors.get(OUTPUT, tensors[EMBEDDING]).type),
        quantization=", ".join(TYPE_NAMES[kind] for kind in kinds),
    )


def _bits(kind: int) -> int:
    """Return the number of bits in a type's name."""
    digits = re.search(r"\d+", TYPE_NAMES[kind])
    assert digits is not None
    return int(digits[0])
