"""Random models of every architecture, with its peculiarities: windows, norms, caps, scales, fused matrices, ropes."""

from .tiny import TinyModel

FACTORS = {"short_factor": [1.0 + 0.1 * step for step in range(8)], "long_factor": [1.0 + step for step in range(8)]}
LONG_ROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, **FACTORS}
LONG = TinyModel(
    family="phi3", more={"pad_token_id": 0, "rope_parameters": LONG_ROPE, "original_max_position_embeddings": 64}
)
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 8.0,
    "beta_slow": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
MINISTRAL = {
    **YARN,
    "factor": 2.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
BY_LAYER = {"full_attention": LINEAR, "sliding_attention": {"rope_theta": 1e3}}
SOME_WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 24}
GEMMA2 = {"sliding_window": 24, **CAPS}
GEMMA3 = {"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}
LIKE_LLAMA_CPP = {"query_pre_attn_scalar": 16}
"""llama.cpp always scales Gemma 2's queries by the head size."""

ARCHITECTURAL = {
    "ernie4_5": TinyModel(family="ernie4_5", more={"pad_token_id": 0}),
    "gemma": TinyModel(family="gemma", tied=True),
    "gemma2": TinyModel(family="gemma2", layers=4, tied=True, more=GEMMA2),
    "gemma2 bfloat16": TinyModel(
        family="gemma2", layers=4, tied=True, dtype="bfloat16", more={**GEMMA2, **LIKE_LLAMA_CPP}
    ),
    "gemma3": TinyModel(family="gemma3", layers=4, tied=True, more=GEMMA3),
    "granite": TinyModel(family="granite", more=MULTIPLIERS),
    "granite tied float16": TinyModel(family="granite", tied=True, dtype="float16", more=MULTIPLIERS),
    "llama": TinyModel(),
    "ministral3": TinyModel(family="ministral3", more={"pad_token_id": 0, "rope_parameters": MINISTRAL}),
    "mistral": TinyModel(family="mistral", more={"sliding_window": 24}),
    "mistral without window": TinyModel(family="mistral", more={"sliding_window": None}),
    "phi3": TinyModel(family="phi3", more={"pad_token_id": 0, "sliding_window": 24}),
    "phi3 sharded bfloat16": TinyModel(family="phi3", dtype="bfloat16", shard="60KB", more={"pad_token_id": 0}),
    "phi3 partial rotary": TinyModel(
        family="phi3", heads=2, kv_heads=1, head_size=32, more={"pad_token_id": 0, "rope_parameters": PARTIAL}
    ),
    "qwen2": TinyModel(family="qwen2"),
    "qwen2 some windows": TinyModel(family="qwen2", layers=3, more=SOME_WINDOWS),
    "qwen3": TinyModel(family="qwen3"),
    "qwen3 tied some windows": TinyModel(family="qwen3", layers=3, tied=True, more=SOME_WINDOWS),
    "smollm3": TinyModel(family="smollm3", layers=4, tied=True, more={"pad_token_id": 0}),
}
"""Those without further words are the plain ones of each architecture."""

SHAPES = ARCHITECTURAL | {
    "llama tied": TinyModel(tied=True),
    "llama one kv head": TinyModel(kv_heads=1),
    "llama all kv heads": TinyModel(kv_heads=4),
    "llama wide heads": TinyModel(head_size=32, mlp=224),
    "llama biases": TinyModel(more={"attention_bias": True, "mlp_bias": True}),
    "llama bfloat16": TinyModel(dtype="bfloat16"),
    "llama sharded": TinyModel(shard="60KB"),
    "qwen2 tied float16": TinyModel(family="qwen2", tied=True, dtype="float16"),
    "llama llama3": TinyModel(more={"rope_parameters": LLAMA3}),
    "llama linear": TinyModel(more={"rope_parameters": LINEAR}),
    "llama yarn": TinyModel(more={"rope_parameters": YARN}),
    "llama yarn weaker": TinyModel(more={"rope_parameters": {**YARN, "attention_factor": 0.7}}),
    "qwen2 yarn": TinyModel(family="qwen2", more={"rope_parameters": YARN}),
    "qwen3 yarn weaker": TinyModel(family="qwen3", more={"rope_parameters": {**YARN, "attention_factor": 0.7}}),
    "smollm3 linear": TinyModel(family="smollm3", layers=4, more={"pad_token_id": 0, "rope_parameters": LINEAR}),
    "granite llama3": TinyModel(family="granite", more={"rope_parameters": LLAMA3}),
    "gemma3 linear": TinyModel(family="gemma3", layers=4, tied=True, more={**GEMMA3, "rope_parameters": BY_LAYER}),
}
PLAIN = [name for name in SHAPES if " " not in name]
WINDOWED = [name for name, tiny in SHAPES.items() if tiny.more.get("sliding_window")]
IN_LLAMA_CPP = [name for name in SHAPES if name != "gemma2"]
