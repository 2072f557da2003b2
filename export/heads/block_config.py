"""What config.json says of a block drafter: DFlash, and DSpark, which adds a Markov chain between its rows.

Facts: SGLang (models/dspark.py, dflash.py), mlx-vlm (drafters/qwen3_dspark), onnxruntime-genai (builders/dspark.py),
and the configurations of LFM2.5's DSpark. Publishers write its fields at the top, or in `dflash_config`. Two have
defaults: `sample_from_anchor` is true only of a head with a Markov chain, and `rope_is_neox_style` is true. What sizes
the graph is never guessed.
"""

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from edgedecode.decoding.policy import MAX_DRAFT
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import BLOCK_HEAD

from ..base_model import read_json
from ..frameworks import fields_of
from .head import HeadShape
from .head_config import HeadConfig

_LAYER = "num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size vocab_size rms_norm_eps"
_OWN = "block_size mask_token_id target_layer_ids"


@dataclass(frozen=True, slots=True)
class _Block:
    block_size: int | None = None
    mask_token_id: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    num_target_layers: int | None = None
    draft_vocab_size: int | None = None
    markov_rank: int | None = None
    markov_head_type: str | None = None
    sample_from_anchor: bool | None = None
    rope_is_neox_style: bool | None = None
    is_neox_style: bool | None = None
    is_causal: bool | None = None
    attention_bias: bool | None = None
    attention_mode: str | None = None
    layer_types: tuple[str, ...] | None = None
    final_logit_softcapping: float | None = None


class BlockConfig:
    """The fields of a block drafter's config.json. Raises ExportError for what is missing, or is not computed here."""

    def __init__(self, folder: Path, config: HeadConfig) -> None:
        value = read_json(folder / "config.json")
        assert isinstance(value, dict)
        own, self._where, self._config = value.get("dflash_config") or {}, f"{folder.name}: config.json", config
        if not isinstance(own, dict):
            raise ExportError(f"{self._where}: dflash_config is no object: download the head again")
        names = [each.name for each in fields(_Block)]
        if twice := [each for each in names if own.get(each, value.get(each)) != value.get(each, own.get(each))]:
            raise ExportError(f"{self._where} says {twice[0]} twice, with two values: download the head again")
        found: dict[str, Any] = {each: own.get(each, value.get(each)) for each in names}
        self._fields = fields_of(found, _Block, self._where)
        missing = [each for each in _LAYER.split() if value.get(each) is None]
        missing += [each for each in _OWN.split() if found[each] is None]
        if missing or not config.has_base:
            raise ExportError(f"{self._where} does not say {(missing or ['rope_theta'])[0]}: nothing is guessed here")
        self._refuse_others()

    def _refuse_others(self) -> None:
        says, kinds = self._fields, {*(self._fields.layer_types or ())} - {"full_attention"}
        others = {
            f"layers with {min(kinds, default='')}": kinds,
            f"a sliding window of {self._config.window} positions": self._config.window,
            "causal attention in a block": says.is_causal,
            "biases of attention": says.attention_bias,
            f"attention of the kind {says.attention_mode}": says.attention_mode not in (None, "gqa"),
            f"a Markov head of the kind {says.markov_head_type}": says.markov_head_type not in (None, "vanilla"),
            "a cap of its logits": says.final_logit_softcapping,
        }
        if found := next((what for what, is_so in others.items() if is_so), None):
            raise ExportError(f"{self._where} says that the block drafter has {found[:80]}, which is not supported")

    @property
    def neox(self) -> bool:
        """Whether RoPE rotates the two halves of a head, not its adjacent values; config.json says only if not."""
        says = self._fields
        return next((each for each in (says.rope_is_neox_style, says.is_neox_style) if each is not None), True)

    def shape(self, *, rank: int, rows: int | None, layers: int) -> HeadShape:
        """Return the sizes. rank: of the Markov head; 0: there is none. rows: of own logits; None: the target's.

        layers: those that the tensors are of.
        """
        says, taps = self._fields, self._fields.target_layer_ids or ()
        assert says.block_size is not None
        assert says.mask_token_id is not None
        shape = self._config.plain_shape(rows=rows)
        if (stated := says.markov_rank) is not None and stated != rank:
            raise ExportError(
                f"{self._where} says markov_rank {stated}, the tensors have {rank}: download the head again"
            )
        if self._config.layers != layers:
            raise ExportError(
                f"{self._where} says num_hidden_layers {self._config.layers}, the tensors have {layers}: "
                f"download the head again"
            )
        if others := [each for each in (says.draft_vocab_size, rows) if each not in (None, shape.vocabulary)]:
            raise ExportError(
                f"{self._where} says vocab_size {shape.vocabulary}, and draft_vocab_size or lm_head has "
                f"{others[0]}: an own draft vocabulary is not supported"
            )
        if not 0 <= says.mask_token_id < shape.vocabulary:
            raise ExportError(
                f"{self._where}: mask_token_id {says.mask_token_id} is none of {shape.vocabulary} ids: "
                f"download the head again"
            )
        if not taps or min(taps) < 0 or any(after <= before for before, after in pairwise(taps)):
            raise ExportError(
                f"{self._where}: target_layer_ids {list(taps)} are no ascending layers: download the head again"
            )
        anchor = says.sample_from_anchor if says.sample_from_anchor is not None else rank > 0
        if not 2 <= says.block_size <= MAX_DRAFT:
            raise ExportError(f"{self._where}: block_size {says.block_size}: blocks of 2 to {MAX_DRAFT} are supported")
        return replace(
            shape,
            kind=BLOCK_HEAD.name,
            tied=rows is None,
            taps=tuple(layer + 1 for layer in taps),  # outputs, which the next layers read
            layers=layers,
            block=says.block_size if anchor else says.block_size - 1,
            mask=says.mask_token_id,
            rank=rank,
            from_anchor=anchor,
            target_layers=says.num_target_layers or 0,
        )
