"""A pack's GGUF file from its plan, its weights file and its tokenizer, as the export would have written it.

Needs numpy and tokenizers: no training framework, no ONNX. The llama.cpp runtime finds it among the entry points of
`edgedecode.makers`, so that runtimes need not know the export, nor packs with a GGUF file this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers

from edgedecode.errors import ExportError, ManifestError
from edgedecode.gguf.encoding import encoded_field
from edgedecode.gguf.fields import ARRAY
from edgedecode.pack.manifest import Manifest, ModelEntry

from .plan import GgufPlan
from .tensors import write_file
from .vocabulary import Vocabulary, read_vocabulary

__all__ = ["GgufMaker"]


class GgufMaker:
    """Implements `Maker`."""

    def make(self, entry: ModelEntry, root: Path, out: Path) -> None:
        """Write the file of `entry`, a model of the pack at `root`, to `out`, a few rows at a time.

        Raises ManifestError for a plan that does not fit the pack, OSError.
        """
        plan = GgufPlan.load(root / entry.gguf_plan)
        tensors = plan.located(root / entry.weights)
        inner = tokenizers.Tokenizer.from_file(str(root / Manifest.load(root).tokenizer))
        try:
            vocabulary = read_vocabulary(inner, rows=plan.rows, name=root.name)
            write_file(out, list(_fields(plan, vocabulary)), tensors, progress=lambda _: None, release=lambda: None)
        except (ExportError, ArithmeticError, LookupError, TypeError, ValueError, struct.error) as error:
            raise ManifestError(f"the GGUF plan of {root} is damaged ({error}): export the pack again") from None


def _fields(plan: GgufPlan, vocabulary: Vocabulary) -> Iterator[bytes]:
    arrays: Mapping[str, Sequence[str] | Sequence[float]] = {
        "tokens": vocabulary.tokens,
        "token_type": [int(kind) for kind in vocabulary.kinds],
        "scores": vocabulary.scores,
        "merges": vocabulary.merges,
    }
    for name, key in plan.keys.items():
        if key is None:
            yield encoded_field(name, arrays[name.rpartition(".")[2]], kind=ARRAY)
        else:
            yield encoded_field(name, key.value, kind=key.type, element=key.element)
