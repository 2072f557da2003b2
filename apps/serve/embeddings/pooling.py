"""Embeds a text: the hidden states of the target, pooled, with a length of 1."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from edgedecode import CapabilityError, ContextExceeded, ManifestError, Pair
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import HiddenModel
from edgedecode.gguf.contents import read_contents

from ..offered import context_length
from ..prompts import encoder
from ..requests.asked import Prompt
from ..running import Service

_ROWS = 32
"""Of a pass: each of them has logits too, which take memory."""
_LAST = 3
"""GGUF's number of pooling by the last token. Of other files the mean over all tokens is taken."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """values: float32 [hidden size]. tokens: of the text."""

    values: FloatArray
    tokens: int


def by_last_token(pair: Pair) -> bool:
    """Return whether the target's file says that the last token's state embeds a text, as those of some models do."""
    entry = pair.manifest.located("target")
    try:
        fields = read_contents(pair.root / entry.gguf).fields if entry.gguf else {}
    except (ManifestError, OSError):  # it lies behind the pack's graphs, and is not here
        return False
    return fields.get(f"{fields.get('general.architecture')}.pooling_type") == _LAST


def check_embeds(service: Service) -> None:
    """Raise CapabilityError unless the model gives its hidden states."""
    if not service.pair.target.card.hidden:
        remedy = "start the server with --embeddings, where our kernels run it (`edgedecode devices -m PACK`)"
        raise CapabilityError(f"{service.pair.manifest.name} gives no embeddings here: {remedy}")


def embedded(service: Service, text: Prompt, *, last: bool, truncates: bool) -> Embedded:
    """Embed a text or token ids. truncates: cut it at the end of the context, in the place of ContextExceeded.

    Raises InputError, BudgetExceeded.
    """
    pair, context = service.pair, context_length(service)
    target = pair.target
    assert isinstance(target, HiddenModel)
    if isinstance(text, str):
        with encoder(service) as source:
            ids = source.encode(text, add_special=True)
    else:
        ids = list(text)
    if len(ids) > context:
        if not truncates:
            raise ContextExceeded.of(f"{len(ids)} tokens", context, room=0, remedy="send a shorter text")
        ids = ids[:context]
    state = pair.turn.run(lambda: target.new_state(len(ids), rows=1 if last else _ROWS))
    try:
        total = np.zeros(pair.manifest.models["target"].hidden_size)
        for start in range(0, len(ids), _ROWS):
            piece = ids[start : start + _ROWS]
            rows = pair.turn.run(partial(target.hidden_rows, piece, state, rows="last" if last else "all"))
            pair.turn.run(lambda: state.keep(range(state.pending)))
            total = rows[-1].astype(np.float64) if last else total + rows.sum(axis=0, dtype=np.float64)
    finally:
        pair.turn.run(state.close)
    size = float(np.linalg.norm(total))
    return Embedded(np.asarray(total / (size or 1.0), np.float32), len(ids))
