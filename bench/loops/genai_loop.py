"""onnxruntime-genai's greedy loop on the pack's graph and weights: a reference for `bench --overhead`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgedecode.cache import cache_folder
from edgedecode.errors import CapabilityError
from edgedecode.export.bundles.genai_folder import GenaiFolder, import_genai, open_genai
from edgedecode.pack.manifest import ModelEntry
from edgedecode.runtimes.threads import default_threads

__all__ = ["GenaiLoop"]

KV_TYPE = "float32"


class GenaiLoop:
    """A greedy Generator for at most `capacity` tokens. Raises RuntimeUnavailable or CapabilityError."""

    name = "onnxruntime-genai Generator"
    runtime = "onnx"

    def __init__(
        self, entry: ModelEntry, root: Path, *, threads: int | None, capacity: int, kv_type: str = KV_TYPE
    ) -> None:
        if kv_type != KV_TYPE:
            raise CapabilityError(f"its KV cache is {KV_TYPE}, that of this run is {kv_type}")
        self._genai = import_genai()
        threads = threads or default_threads((root / entry.weights).stat().st_size)
        self.setting = f"at most {capacity} tokens, {threads} threads, {KV_TYPE} KV cache"
        with tempfile.TemporaryDirectory(dir=cache_folder("peers"), ignore_cleanup_errors=True) as name:
            folder = GenaiFolder(Path(name), context=capacity, ends=())
            folder.add_model("target", entry, root, threads=threads)
            self._model = open_genai(self._genai, folder.path)
        self._options = self._genai.GeneratorParams(self._model)
        self._options.set_search_options(do_sample=False, max_length=capacity)
        self._generator = self._genai.Generator(self._model, self._options)

    def read(self, prompt: Sequence[int]) -> int:
        """Prefill the prompt and return the first token."""
        self._generator = self._genai.Generator(self._model, self._options)
        self._generator.append_tokens(list(prompt))
        return self._token()

    def decode(self, token: int, count: int) -> list[int]:
        """Return the next `count` tokens, fewer at an end of sequence, which genai cannot continue past."""
        tokens: list[int] = []
        while len(tokens) < count and not self._generator.is_done():
            tokens.append(self._token())
        return tokens

    def _token(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])
