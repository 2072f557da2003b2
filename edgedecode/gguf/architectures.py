"""The architectures that edgedecode exports, and reads from GGUF files: one record each.

docs/architecture.md says how to add one. Sources: llama.cpp's src/models, src/llama-model.cpp (defaults of missing
fields) and conversion folders, as vendored by llama-cpp-python 0.3.36; transformers' configurations and models.
"""

import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace

ENCODERS = re.compile(r".*bert.*|t5(encoder)?|clip|.*embedding|wavtokenizer-dec|dream|llada(-moe)?|rnd1")
"""Architectures of llama.cpp's that encode texts or fill gaps, but do not generate continuations."""
ATTENTION = "attention"
CONVOLUTION, GATED_DELTA, MAMBA2 = "short convolution", "gated delta rule", "Mamba-2"
"""What layers do before their feed-forward part."""
_FREQUENCIES = ("rope_freqs.weight",)
PER_LAYER_TABLE = "per_layer_token_embd.weight"
"""A table with a row of values for each layer, by token id."""
AFTER_NORMS, HEAD_NORMS = ("post_attention_norm", "post_ffw_norm"), ("attn_q_norm", "attn_k_norm")
"""Of what attention and MLP add, and of each query and key."""
_LONG_AND_SHORT = ("rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the sizes and tensors of a model do not tell. Two classes of transformers may share llama.cpp's name."""

    name: str
    """llama.cpp's: general.architecture in its files."""
    builder: str
    """The class in onnxruntime-genai's model builder; empty: none."""

    tied: bool = False
    """Whether head and embedding are one matrix if config.json does not say."""
    head_size: int = 0
    """The size of an attention head if config.json does not say; 0: the hidden size by heads."""
    fused: bool = False
    """Whether gate and up projections, and q, k and v projections, are one matrix each."""

    interleaved: bool = False
    """Whether llama.cpp's rotary embedding pairs adjacent rows of a head, not its two halves."""
    adjacent: bool = False
    """Whether transformers pairs adjacent rows too. If not, its query and key rows are in another order than those of
    files with adjacent pairs."""
    norms: tuple[str, ...] = ()
    """The norms of a layer beyond those before attention and MLP."""
    factors: tuple[str, ...] = ()
    """The tensors of RoPE factors that llama.cpp reads."""
    windows: bool = False
    """Whether llama.cpp computes sliding windows."""
    square: bool = False
    """Whether llama.cpp requires heads × head size to equal the hidden size."""
    shifted: bool = False
    """Whether transformers stores norm weights minus one."""

    gelu: bool = False
    scaled_embedding: bool = False
    """Whether the embedding is multiplied by the root of the hidden size."""
    every: int = 0
    """0: no layer has a window; 1: all have one; n > 1: all but every n-th layer, which has full attention."""
    unrotated: int = 0
    """0: all layers have a rotary embedding; n: all but every n-th."""
    recurrent: str = ""
    """What layers without KV heads have in the place of attention; empty: every layer has attention."""
    full_every: int = 0
    """n: if a file does not list its recurrent layers, every n-th layer has attention; 0: those with KV heads have."""
    gated: bool = False
    """Whether the matrix of queries also returns a gate for each head's result, behind its query."""
    optional_rotation: bool = False
    """Whether files say that layers have no rotary embedding, by rope.scaling.finetuned."""
    mlp_norm: str = "ffn_norm"
    """The tensor of the norm before the feed-forward part."""
    final_norm: str = "output_norm"
    """The tensor of the norm before the last product."""
    own_window_rotation: bool = False
    """Whether layers with a window rotate with another base, and without scaling."""
    tempered: bool = False
    """Whether queries are multiplied by a number that grows with their position, beyond the context before YaRN."""
    attention_cap: float = 0.0
    logits_cap: float = 0.0
    normed_values: bool = False
    """Whether values have a norm without weights; without a matrix of their own, they are the keys before theirs."""
    rotated_by_pass: bool = False
    """Whether each pass computes the rotation of its rows: tables of all positions would take hundreds of megabytes."""
    score_scale: float = 0.0
    """What llama.cpp multiplies scores by; 0: the root of the head size, inverted."""
    wide_layers: int = 0
    """The number of layers of the one model whose scores llama.cpp scales by the hidden size per head instead of the
    head size: 27B parameters."""

    @property
    def reordered(self) -> bool:
        """Whether files order the rows of queries and keys differently from transformers."""
        return self.interleaved and not self.adjacent


_GEMMA = Architecture("gemma", "GemmaModel", tied=True, head_size=256, shifted=True, gelu=True, scaled_embedding=True)
_LLAMA = Architecture("llama", "LlamaModel", interleaved=True, factors=_FREQUENCIES)

ARCHITECTURES: dict[str, Architecture] = {
    "Ernie4_5ForCausalLM": Architecture(
        "ernie4_5", "ErnieModel", tied=True, head_size=128, interleaved=True, adjacent=True,
    ),
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": replace(
        _GEMMA, name="gemma2", builder="Gemma2Model", windows=True, every=2,
        attention_cap=50.0, logits_cap=30.0, wide_layers=46, norms=AFTER_NORMS,
    ),
    "Gemma3ForCausalLM": replace(
        _GEMMA, name="gemma3", builder="Gemma3Model", windows=True, every=6, own_window_rotation=True, wide_layers=62,
        norms=(*AFTER_NORMS, *HEAD_NORMS),
    ),
    "GraniteForCausalLM": replace(_LLAMA, name="granite", builder="GraniteModel"),
    "LlamaForCausalLM": _LLAMA,
    "Ministral3ForCausalLM": replace(_LLAMA, name="mistral3", builder="MistralModel", head_size=128, tempered=True),
    "MistralForCausalLM": replace(_LLAMA, builder="MistralModel"),
    "Phi3ForCausalLM": Architecture(
        "phi3", "Phi3MiniModel", fused=True, factors=_LONG_AND_SHORT, square=True, every=1,
    ),
    "Qwen2ForCausalLM": Architecture("qwen2", "QwenModel", square=True),
    "Qwen3ForCausalLM": Architecture("qwen3", "Qwen3Model", head_size=128, norms=HEAD_NORMS),
    "SmolLM3ForCausalLM": Architecture("smollm3", "SmolLM3Model", tied=True, interleaved=True, unrotated=4),
}  # fmt: skip
"""By transformers' class, as config.json names it."""

HYBRIDS: dict[str, Architecture] = {
    "Gemma4ForCausalLM": replace(
        _GEMMA, name="gemma4", builder="", shifted=False, windows=True, every=1, own_window_rotation=True,
        factors=_FREQUENCIES, score_scale=1.0, normed_values=True,
        rotated_by_pass=True, norms=(*AFTER_NORMS, *HEAD_NORMS),
    ),
    "GraniteMoeHybridForCausalLM": replace(
        _LLAMA, name="granitehybrid", builder="", recurrent=MAMBA2, optional_rotation=True,
    ),
    "Lfm2ForCausalLM": Architecture(
        "lfm2", "", tied=True, windows=True, every=1, norms=HEAD_NORMS, recurrent=CONVOLUTION,
        final_norm="token_embd_norm",
    ),
    "Qwen3_5ForCausalLM": Architecture(
        "qwen35", "", head_size=256, shifted=True, norms=HEAD_NORMS, recurrent=GATED_DELTA, full_every=4, gated=True,
        mlp_norm="post_attention_norm",
    ),
}  # fmt: skip
"""The same of models that run as GGUF files only, on our own kernels or llama.cpp: such a file is what is exported."""
ALL: Mapping[str, Architecture] = ChainMap(HYBRIDS, ARCHITECTURES)
"""A view of both, those with a graph first."""

HEAD = replace(_LLAMA, name="eagle3", windows=True, every=1)
"""Drafting heads, which are no models: one layer that also reads what layers of the target read."""
MTP = Architecture("mtp", "", windows=True, every=1)
"""The layer of a checkpoint that predicts further tokens (2412.19437), as a drafting head: a layer of the target's own
kind. It reads, beside an embedding, what follows the target's final norm, or its own."""
ASSISTANT = replace(HYBRIDS["Gemma4ForCausalLM"], name="gemma4-assistant")
"""Gemma 4's drafter, as a drafting head: some small layers, whose queries read the target's keys and values."""
BLOCK_HEAD = replace(_LLAMA, name="edgedecode-block", norms=HEAD_NORMS)
"""A drafter of whole blocks (DFlash, 2602.06036; DSpark), as a drafting head: some layers whose rows, of a token and of
masks, read each other and, as further keys and values, what layers of the target return."""
MARKOV = ("markov_w1.weight", "markov_w2.weight")
"""A block drafter's tensors by which a token changes the logits of the next one: of the former, and of the latter."""
HEADS: Mapping[str, Architecture] = {each.name: each for each in (HEAD, MTP, ASSISTANT, BLOCK_HEAD)}
HEAD_TAPS = 3
"""The layers of the target whose inputs a head of EAGLE-3's form reads."""
HEAD_IDS = "d2t"
"""A head's tensor with the token id of each row of its logits."""

BY_NAME: Mapping[str, Architecture] = {each.name: each for each in [*HYBRIDS.values(), *ARCHITECTURES.values()][::-1]}
"""By llama.cpp's name; where two classes share it, the first."""
