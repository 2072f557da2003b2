"""Greedy loops on a GGUF file: references for the llama.cpp runtime and edgedecode's loop in `bench --overhead`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from weakref import finalize

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.llama.files.cached_gguf import gguf_path
from edgedecode.runtimes.llama.llama_engine import EXACT, KV_TYPES, Engine, Loading
from edgedecode.runtimes.llama.llama_footprint import ROWS_PER_PASS
from edgedecode.runtimes.llama.llama_log import Untyped
from edgedecode.runtimes.threads import default_threads

__all__ = ["HighLevelLoop", "LlamaBareLoop"]


class LlamaBareLoop:
    """A minimal loop: the engine's default context with edgedecode's size and types, one reused batch, and numpy's
    arg-max on the engine's logits in place, without checks and without rollback.

    The engine's own greedy sampler chain takes 1 to 2% longer (8,192 tokens: 0.654 against 0.648 ms a pass; 151,936:
    17.4 and 17.0).
    """

    name = "bare llama_decode loop"
    runtime = "llama"

    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        path = gguf_path(entry, folder, name="target", budget=Budget())
        threads = threads or default_threads(path.stat().st_size)
        self.setting = _described(capacity, threads=threads, kv_type=kv_type)
        engine = Engine()
        self._api = engine.api
        self._weights = engine.load(path, Loading())
        options = _options(self._api, capacity=capacity, threads=threads, kv_type=kv_type)
        self._native = self._api.llama_init_from_model(self._weights.native, options)
        if not self._native:
            raise RuntimeUnavailable(f"llama.cpp made no context of {capacity} positions ({engine.log.reason()})")
        finalize(self, _free, self._api, self._native, self._weights)
        self._memory = self._api.llama_get_memory(self._native)
        self._capacity = capacity
        self._length = 0
        self._token = (ctypes.c_int32 * 1)()
        self._row = self._api.llama_batch_get_one(self._token, 1)
        self._logits: FloatArray | None = None

    def read(self, prompt: Sequence[int]) -> int:
        """Empty the KV cache, prefill the prompt and return the first token."""
        self._api.llama_memory_clear(self._memory, False)
        for start in range(0, len(prompt), ROWS_PER_PASS):
            tokens = prompt[start : start + ROWS_PER_PASS]
            array = (ctypes.c_int32 * len(tokens))(*tokens)  # the batch does not keep it alive
            if status := self._api.llama_decode(self._native, self._api.llama_batch_get_one(array, len(tokens))):
                raise RuntimeUnavailable(f"llama.cpp failed to read {len(prompt)} tokens (code {status})")
        self._length = len(prompt)
        self._logits = self._last_logits()
        return int(self._logits.argmax())

    def decode(self, token: int, count: int) -> list[int]:
        """Return the `count` tokens after `token`."""
        if self._length + count > self._capacity:
            raise CapabilityError(f"{count} tokens do not fit the {self._capacity - self._length} positions left")
        decode, synchronize = self._api.llama_decode, self._api.llama_synchronize
        native, row, logits = self._native, self._row, self._last_logits()
        tokens: list[int] = []
        for _ in range(count):
            self._token[0] = token
            decode(native, row)
            synchronize(native)
            token = int(logits.argmax())
            tokens.append(token)
        self._length += count
        return tokens

    def _last_logits(self) -> FloatArray:
        """Return a view of the last row's logits, which each later pass with one output overwrites."""
        pointer = self._api.llama_get_logits(self._native)
        return np.ctypeslib.as_array(pointer, (self._weights.rows,))


class HighLevelLoop:
    """`Llama.generate` at temperature 0, the fastest greedy loop of that class. Raises RuntimeUnavailable.

    `eval` with numpy's arg-max over the class's logits is as fast (8,192 tokens: 0.690 and 0.698 ms a token; 151,936:
    17.8 and 17.7), `eval` with `sample` is slower; flash attention, off by default in the class, gains 7 to 11%.
    """

    name = "llama-cpp-python Llama.generate"
    runtime = "llama"

    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        path = gguf_path(entry, folder, name="target", budget=Budget())
        threads = threads or default_threads(path.stat().st_size)
        self.setting = _described(capacity, threads=threads, kv_type=kv_type)
        Engine()  # if llama-cpp-python is missing, its error names the package to install
        from llama_cpp import Llama

        try:
            self._llama = Llama(
                str(path),
                n_ctx=capacity,
                n_batch=ROWS_PER_PASS,
                n_ubatch=ROWS_PER_PASS,
                n_threads=threads,
                n_threads_batch=threads,
                type_k=KV_TYPES[kv_type],
                type_v=KV_TYPES[kv_type],
                flash_attn=kv_type != EXACT,
                no_perf=True,
                verbose=False,
            )
        except Exception as error:  # ValueError from the class, and any exception from its parts
            raise RuntimeUnavailable(f"the class Llama does not open {path}: {error}") from None
        self._capacity = capacity
        self._length = 0
        self._tokens: Iterator[int] = iter(())

    def read(self, prompt: Sequence[int]) -> int:
        """Empty the KV cache, prefill the prompt and return the first token."""
        self._llama.reset()
        self._tokens = self._llama.generate(list(prompt), temp=0.0)
        self._length = len(prompt)
        return next(self._tokens)

    def decode(self, token: int, count: int) -> list[int]:
        """Return the next `count` tokens; `token` is ignored, since the generator already has it."""
        if self._length + count > self._capacity:
            raise CapabilityError(f"{count} tokens do not fit the {self._capacity - self._length} positions left")
        self._length += count
        return list(islice(self._tokens, count))


def _described(capacity: int, *, threads: int, kv_type: str) -> str:
    """Return a loop's settings in words; they are those of the runtime."""
    flash = "off" if kv_type == EXACT else "on"
    return (
        f"context of {capacity}, {threads} threads, {ROWS_PER_PASS} rows per pass, {kv_type} KV cache, "
        f"flash attention {flash}"
    )


def _options(api: Untyped, *, capacity: int, threads: int, kv_type: str) -> Untyped:
    options = api.llama_context_default_params()
    options.n_ctx = capacity
    options.n_batch = options.n_ubatch = ROWS_PER_PASS
    options.n_threads = options.n_threads_batch = threads
    options.type_k = options.type_v = KV_TYPES[kv_type]
    options.flash_attn_type = int(kv_type != EXACT)
    options.no_perf = True
    return options


def _free(api: Untyped, native: Untyped, weights: Untyped) -> None:
    """Free the context, then the weights, which the context uses until it is freed."""
    api.llama_free(native)
    weights.close()
