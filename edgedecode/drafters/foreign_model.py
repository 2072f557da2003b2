"""Draft models with a tokenizer of their own: by a map of ids where most tokens are the target's, else by text."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.decoding.model import AdapterUse, LanguageModel, Output, RowRequest, State
from edgedecode.decoding.wrapped_model import WrappedModel
from edgedecode.errors import CapabilityError
from edgedecode.text.tokenizer import PROBE, TextTokens, Tokenizer

from .text_drafter import TextModel

ALIKE = 0.95
"""Share of the target's tokens that the draft must have too, to be read and written token by token."""


class MappedModel(WrappedModel):
    """A draft model that reads the target's tokens, and whose rows are those of the target's tokens that it has too."""

    def __init__(self, model: LanguageModel, ids: IntArray, *, unknown: int, closed: Callable[[], None]) -> None:
        """ids: the draft's id of each of the target's, -1: none. unknown: what it reads in the place of such a one."""
        super().__init__(model, closed=closed)
        self._ids = np.where(ids < 0, unknown, ids)
        shared = np.flatnonzero(ids >= 0)
        rows = ids[shared]
        self._rows = slice(len(rows)) if (rows == np.arange(len(rows))).all() else rows  # a view where it is enough
        self.card = replace(
            model.card, rows=len(rows), vocabulary_size=len(ids), token_ids=shared, lora_rank=0, lora_modules=()
        )

    def forward(
        self,
        tokens: Sequence[int],
        state: State,
        *,
        parents: Sequence[int] | None = None,
        rows: RowRequest = "last",
        adapter: AdapterUse | None = None,
    ) -> Output:
        own = self._ids[list(tokens)].tolist()
        return Output(super().forward(own, state, parents=parents, rows=rows).logits[:, self._rows])


def foreign_model(
    model: LanguageModel, *, tokenizer: Tokenizer, target: Tokenizer, closed: Callable[[], None]
) -> LanguageModel:
    """Return the model as drafters run it. Raises CapabilityError if its tokenizer changes texts."""
    check_keeps_text(tokenizer)
    texts = map(target.token_text, range(target.size))
    found = [None if text is None else tokenizer.token_to_id(text) for text in texts]
    ids = np.array([-1 if id is None else id for id in found], np.int64)
    alike = (ids >= 0).mean() >= ALIKE and ids[target.encode(PROBE)].tolist() == tokenizer.encode(PROBE)
    if alike:
        return MappedModel(model, ids, unknown=tokenizer.encode(" ")[0], closed=closed)
    return TextModel(model, tokenizer=tokenizer, target=target, closed=closed)


def check_keeps_text(tokenizer: Tokenizer) -> None:
    """Raise CapabilityError for a tokenizer from whose tokens the text does not come back."""
    if (change := TextTokens(tokenizer).change()) is not None:
        raise CapabilityError(
            f"the draft's tokenizer changes text ({change}), and what it drafts would not be what the target writes: "
            f"use a draft model whose tokenizer keeps text as it is"
        )
