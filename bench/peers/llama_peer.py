"""llama-cpp-python's class `Llama` as a peer of `bench --against`: plain, and with its prompt lookup.

Prompt lookup is its only speculation; it does not support a draft model. With lookup it computes the logits of every
row, so plain decoding has a separate instance; both map the same file. Runs in a child process.
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.llama.files.cached_gguf import gguf_path
from edgedecode.runtimes.llama.llama_engine import EXACT, KV_TYPES, Engine
from edgedecode.runtimes.llama.llama_log import Untyped

from .peer import PLAIN_MODE, Answer, PeerOrder

LOOKUP_LENGTHS = (2, 4, 8, 10)
"""Lengths of its lookup drafts in tokens; 10 is its default, and 2 its recommendation for CPUs."""


class LlamaPeer:
    """Answers with `Llama.generate` at temperature 0 on the pack's GGUF file."""

    def __init__(self, order: PeerOrder) -> None:
        root, kv_type = Path(order.root), order.kv_type
        if kv_type not in KV_TYPES:
            raise CapabilityError(f"llama.cpp has no {kv_type} KV cache")
        path = gguf_path(Manifest.load(root).located("target"), root, name="target", budget=Budget())
        Engine()  # if llama-cpp-python is missing, its error names the package to install
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        def opened(draft_model: Untyped) -> Untyped:
            return llama_cpp.Llama(
                str(path),
                n_ctx=order.capacity + LOOKUP_LENGTHS[-1] + 1,
                n_threads=order.threads,
                n_threads_batch=order.threads,
                type_k=KV_TYPES[kv_type],
                type_v=KV_TYPES[kv_type],
                flash_attn=kv_type != EXACT,
                draft_model=draft_model,
                no_perf=True,
                verbose=False,
            )

        self._ends = frozenset(order.ends)
        self._lookup = LlamaPromptLookupDecoding()
        try:
            self._plain, self._speculative = opened(None), opened(self._lookup)
        except Exception as error:  # ValueError from the class, and any exception from its parts
            raise RuntimeUnavailable(f"the class Llama does not open {path}: {error}") from None
        self.modes = (PLAIN_MODE, *(f"lookup {length}" for length in LOOKUP_LENGTHS))
        self.setting = (
            f"llama-cpp-python {llama_cpp.__version__}, class Llama on the pack's GGUF file, {order.threads} threads, "
            f"{kv_type} KV cache; speculation by prompt lookup only, it does not support a draft model"
        )

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        """Answer from an empty KV cache; prefill ends with the first token."""
        started, ends, llama = perf_counter(), list[float](), self._plain
        if mode != PLAIN_MODE:
            llama, self._lookup.num_pred_tokens = self._speculative, int(mode.split()[1])
        llama.reset()
        tokens: list[int] = []
        for token in llama.generate(list(prompt), temp=0.0):
            tokens.append(int(token))
            ends.append(perf_counter() - started)
            if len(tokens) == count or tokens[-1] in self._ends:
                break
        return Answer(tuple(tokens), perf_counter() - started, ends[0], 1)
