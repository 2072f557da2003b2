"""The arguments of stock llama.cpp programs that follow from a bundle's plan, as of llama.cpp 0c1e57098."""

from collections.abc import Mapping

from .bundle import Bundle

_ROWS = 64
"""Rows of a pass: the default of 512 reserves buffers for many more logits than a phone has room for."""

_KV_TYPE = "f16"
"""As the plan counts keys and values."""


def llama_commands(bundle: Bundle) -> Mapping[str, tuple[str, ...]]:
    """Return the arguments of llama-server and llama-cli; paths are relative to the bundle."""
    plan, target, draft = bundle.plan, bundle.models["target"], bundle.models.get("draft")
    words = ["--model", target.gguf, "--ctx-size", str(plan.context), "--threads", str(plan.threads)]
    words += ["--batch-size", str(_ROWS), "--ubatch-size", str(_ROWS), "--parallel", "1"]
    words += ["--cache-type-k", _KV_TYPE, "--cache-type-v", _KV_TYPE]
    if draft is not None and plan.draft_length:
        words += ["--spec-type", "draft-simple", "--spec-draft-model", draft.gguf]
        words += ["--cache-type-k-draft", _KV_TYPE, "--cache-type-v-draft", _KV_TYPE]
        words += ["--spec-draft-n-max", str(plan.draft_length), "--spec-draft-p-min", f"{plan.least_chance:g}"]
    server = [*words, "--host", "127.0.0.1", "--port", "8080"]
    return {"llama-server": tuple(server), "llama-cli": tuple(words)}
