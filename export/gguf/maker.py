"""A pack's GGUF file from its plan, its weights file and its tokenizer, as the export would have written it.

Needs numpy, tokenizers and gguf: no training framework, no ONNX. The llama.cpp runtime finds it among the
entry points of `edgedecode.makers`, so that runtimes need not know the export, nor packs with a GGUF file this module.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from edgedecode.errors import ExportError, ManifestError, RuntimeUnavailable
from edgedecode.pack.manifest import Manifest, ModelEntry

from .plan import GgufPlan
from .tensors import write_file
from .vocabulary import Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from gguf import GGUFWriter

__all__ = ["GgufMaker"]


class GgufMaker:
    """Implements `Maker`."""

    def make(self, entry: ModelEntry, root: Path, out: Path) -> None:
        """Write the file of `entry`, a model of the pack at `root`, to `out`, a few rows at a time.

        Raises ManifestError for a plan that does not fit the pack, RuntimeUnavailable without gguf, OSError.
        """
        plan = GgufPlan.load(root / entry.gguf_plan)
        tensors = plan.located(root / entry.weights)
        inner = tokenizers.Tokenizer.from_file(str(root / Manifest.load(root).tokenizer))
        try:
            vocabulary = read_vocabulary(inner, rows=plan.rows, name=root.name)
            writer = _writer(plan, vocabulary)
            write_file(out, writer, tensors, progress=lambda _: None, release=lambda: None)
        except (ExportError, ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
            raise ManifestError(f"the GGUF plan of {root} is damaged ({error}): export the pack again") from None


def _writer(plan: GgufPlan, vocabulary: Vocabulary) -> GGUFWriter:
    try:
        import gguf
    except ImportError as error:
        raise RuntimeUnavailable(
            f"a GGUF file is made with {error.name}, not installed: pip install 'edgedecode[llama]'"
        ) from None
    arrays = {
        "tokens": list(vocabulary.tokens),
        "token_type": [int(kind) for kind in vocabulary.kinds],
        "scores": list(vocabulary.scores),
        "merges": list(vocabulary.merges),
    }
    writer = gguf.GGUFWriter(None, plan.architecture)
    for name, key in plan.keys.items():
        if key is None:
            writer.add_array(name, arrays[name.rpartition(".")[2]])
            continue
        element = None if key.element is None else gguf.GGUFValueType(key.element)
        writer.kv_data[0].pop(name, None)  # the architecture's is there already, and keeps its place at the front
        writer.add_key_value(name, key.value, gguf.GGUFValueType(key.kind), sub_type=element)
    return writer
