"""llama-cpp-python's own fastest greedy loop, `Llama.generate` at temperature 0: a reference for `bench --overhead`.

`eval` with numpy's arg-max over the class's logits is as fast (8,192 tokens: 0.690 and 0.698 ms a token; 151,936: 17.8
and 17.7), `eval` with `sample` slower; flash attention, which the class leaves off, gains 7 to 11%.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.memory import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.llama.files.cached_gguf import gguf_path
from edgedecode.runtimes.llama.llama_engine import EXACT, KV_TYPES, Engine
from edgedecode.runtimes.llama.llama_footprint import ROWS_PER_PASS
from edgedecode.runtimes.threads import default_threads

from .llama_loop import described

__all__ = ["HighLevelLoop"]


class HighLevelLoop:
    """Reads a prompt, then yields what the class generates. Raises RuntimeUnavailable with the reason."""

    name = "llama-cpp-python Llama.generate"
    runtime = "llama"

    def __init__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str) -> None:
        path = gguf_path(entry, folder, name="target", budget=Budget())
        threads = threads or default_threads(path.stat().st_size)
        self.setting = described(capacity, threads=threads, kv_type=kv_type)
        Engine()  # fails with a line that says what to install
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
        except Exception as error:  # the class raises ValueError, and whatever its parts raise
            raise RuntimeUnavailable(f"the class Llama does not open {path}: {error}") from None
        self._capacity = capacity
        self._length = 0
        self._tokens: Iterator[int] = iter(())

    def read(self, prompt: Sequence[int]) -> int:
        """Start over, read the prompt and return the first token."""
        self._llama.reset()
        self._tokens = self._llama.generate(list(prompt), temp=0.0)
        self._length = len(prompt)
        return next(self._tokens)

    def decode(self, token: int, count: int) -> list[int]:
        """Return the `count` tokens after the newest one."""
        if self._length + count > self._capacity:
            raise CapabilityError(f"{count} tokens do not fit the {self._capacity - self._length} positions left")
        self._length += count
        return list(islice(self._tokens, count))
