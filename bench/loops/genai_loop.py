"""onnxruntime-genai's own greedy loop on a folder that its builder made: a reference for `bench --overhead`.

It lives here because this ring alone knows onnxruntime-genai; the bench finds it through `edgedecode.loops`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from edgedecode.errors import CapabilityError, RuntimeUnavailable
from edgedecode.export.frameworks import reason_of
from edgedecode.pack.manifest import ModelEntry

__all__ = ["GenaiLoop"]

KV_TYPE = "float32"


class GenaiLoop:
    """A Generator, arg-max, at most `capacity` tokens. Raises RuntimeUnavailable with the reason."""

    name = "onnxruntime-genai Generator"
    runtime = "onnx"

    def __init__(
        self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str = KV_TYPE
    ) -> None:
        if kv_type != KV_TYPE:
            raise CapabilityError(f"it keeps keys and values in {KV_TYPE}, this run in {kv_type}")
        self.setting = f"at most {capacity} tokens, {threads or 'its own choice of'} threads, as its folder says"
        try:
            self._genai = import_module("onnxruntime_genai")
        except ImportError:
            raise RuntimeUnavailable("onnxruntime-genai is missing: pip install 'edgedecode[export]'") from None
        try:
            config = self._genai.Config(str(folder))
            if threads is not None:
                options = {"intra_op_num_threads": threads}
                config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
            self._model = self._genai.Model(config)
        except Exception as error:  # the bindings raise RuntimeError, and kinds of their own
            raise RuntimeUnavailable(f"onnxruntime-genai does not open {folder}: {reason_of(error)}") from None
        self._options = self._genai.GeneratorParams(self._model)
        self._options.set_search_options(do_sample=False, max_length=capacity)
        self._generator = self._genai.Generator(self._model, self._options)

    def read(self, prompt: Sequence[int]) -> int:
        """Read the prompt and return the first token."""
        self._generator = self._genai.Generator(self._model, self._options)
        self._generator.append_tokens(list(prompt))
        return self._token()

    def decode(self, token: int, count: int) -> list[int]:
        """Return the next tokens, `count` of them unless an end of sequence comes first: it cannot go past one."""
        tokens: list[int] = []
        while len(tokens) < count and not self._generator.is_done():
            tokens.append(self._token())
        return tokens

    def _token(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])
