"""onnxruntime-genai as a peer of `bench --against`: plain, with its draft model, and with its n-gram lookup.

Runs in a child process. Its speculation with a draft model needs both models in one configuration; plain decoding and
lookups run on the target alone.
"""

import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from edgedecode.cache import cache_folder
from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import Manifest

from .genai_folder import GenaiFolder, import_genai, open_genai
from .peer import PeerOrder

KV_TYPE = "float32"
_ROOM = 17
"""Additional positions for its longest draft."""
_PLAIN: dict[str, dict[str, object]] = {"plain": {}}
_LOOKUPS: dict[str, dict[str, object]] = {
    "lookup 4": {"ngram_size": 3, "max_draft_tokens": 4},
    "lookup 8": {"ngram_size": 3, "max_draft_tokens": 8},
    "lookup 8 adaptive": {"ngram_size": 3, "max_draft_tokens": 8, "min_adaptive_k": 1, "cooldown": True},
    "lookup 8 chained": {"ngram_size": 3, "max_draft_tokens": 8, "ngram_chained_lookup": True},
}
_DRAFTS: dict[str, dict[str, object]] = {
    "draft 2": {"max_draft_tokens": 2},
    "draft 4": {"max_draft_tokens": 4},
    "draft 8": {"max_draft_tokens": 8},
    "draft 8 adaptive": {"max_draft_tokens": 8, "min_adaptive_k": 1, "cooldown": True},
}
"""Speculative options by mode. 4 is genai's default length; adaptive modes shorten drafts to 1 token and pause after
rejections."""


class GenaiPeer:
    """Answers with a `Generator`, arg-max, over the pack's own graphs and weights."""

    def __init__(self, order: PeerOrder) -> None:
        # float16 is accepted: it is the default of our llama.cpp runtime, not a choice of the user.
        if order.kv_type not in (KV_TYPE, "float16"):
            raise CapabilityError(f"its KV cache is {KV_TYPE}, that of this run is {order.kv_type}")
        self._genai = import_genai()
        self._capacity = order.capacity
        with tempfile.TemporaryDirectory(dir=cache_folder("peers"), ignore_cleanup_errors=True) as name:
            folder = GenaiFolder(Path(name), context=order.capacity, ends=order.ends)
            root = Path(order.root)
            manifest = Manifest.load(root)
            for role, count in (("target", order.threads), ("draft", order.draft_threads)):
                if role in manifest.models:
                    folder.add_model(role, manifest.located(role), root, threads=count)
            self._target = open_genai(self._genai, folder.path)
            self._pair = open_genai(self._genai, folder.path, folder.speculative) if folder.has_draft else None
        drafts = _DRAFTS if self._pair is not None else {}
        self._options = _PLAIN | drafts | _LOOKUPS
        self.modes = tuple(self._options)
        self.setting = (
            f"onnxruntime-genai {version('onnxruntime-genai')}, Generator over the graphs and weights of the pack, "
            f"threads: target {order.threads}, draft {order.draft_threads if drafts else 'none'}, "
            f"{KV_TYPE} KV cache"
        )

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, read: Callable[[int], None]) -> Sequence[int]:
        """Answer in a new Generator, as genai does for each conversation."""
        model = self._pair if mode in _DRAFTS else self._target
        parameters = self._genai.GeneratorParams(model)
        parameters.set_search_options(do_sample=False, max_length=min(self._capacity, len(prompt) + count + _ROOM))
        if options := self._options[mode]:
            parameters.set_speculative_options(**options)
        generator = self._genai.Generator(model, parameters)
        generator.append_tokens(list(prompt))
        read(0)
        tokens: list[int] = []
        while len(tokens) < count and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return tokens
