"""Builds a pack's GGUF file from its plan, weights file and tokenizer, identical to the one that export would write.

Needs neither a training framework nor ONNX. The llama.cpp runtime loads it through the entry points of
`edgedecode.makers`, so that runtimes do not depend on the export.
"""

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


class GgufMaker:
    """Implements `Maker`."""

    def make(self, entry: ModelEntry, root: Path, out: Path) -> None:
        """Write the GGUF file of `entry`, a model of the pack at `root`, to `out`, streaming its rows.

        Raises ManifestError if the plan does not match the pack, or OSError.
        """
        plan = GgufPlan.load(root / entry.gguf_plan)
        tensors = plan.located(root / entry.weights)
        if plan.rows != entry.rows:
            raise ManifestError(
                f"the GGUF plan of {root} is for {plan.rows} rows, not {entry.rows}: export the pack again"
            )
        inner = tokenizers.Tokenizer.from_file(str(root / Manifest.load(root).tokenizer))
        try:
            fields = list(_fields(plan, read_vocabulary(inner, rows=plan.rows, name=root.name)))
        except (
            ExportError,
            ValueError,
        ) as error:  # llama.cpp lacks the tokenizer, or a key has a value of another type
            raise ManifestError(f"the GGUF plan of {root} is damaged ({error}): export the pack again") from None
        write_file(out, fields, tensors, progress=lambda _: None, release=lambda: None)


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
