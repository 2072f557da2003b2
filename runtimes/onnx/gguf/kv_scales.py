"""The scales of a GGUF file's 8-bit keys and values, measured once on text that the model writes."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.cache import aside, cache_folder
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import INT8_KV, ModelRequest
from edgedecode.engines.kv_scales import calibrate_scales
from edgedecode.user_notices import notice, work

from ..kernels.prepared import FOLDER, weights_digest
from .metadata import Metadata, read_metadata

_TEXTS, _LENGTH = 4, 128
"""Divergence of SmolLM2-135M (Q4_1) on 1,531 tokens of chats: 1.6e-3 to 2.6e-3 by seed; with the scales that an export
measures on answers to prompts 1.5e-3, with one greedy text 2e-2."""
_KEPT: dict[str | tuple[Path, int, int], FloatArray] = {}
"""By digest, or of files that have none by path, time and size."""


def scales_of(digest: str, path: Path, metadata: Metadata) -> FloatArray:
    """Return the measured scales of the file at `path`, [caches, KV heads, head size]; ones: not measured."""
    layers = [layer for layer in metadata.every_layer if layer.kv_heads]
    shape, key = (2 * len(layers), layers[0].kv_heads, layers[0].head_size), digest or _state(path)
    if key not in _KEPT and (kept := _path(digest)) is not None:
        with suppress(OSError, ValueError, EOFError):
            found = np.load(kept, allow_pickle=False)
            if found.dtype == np.float32 and found.shape == shape and np.isfinite(found).all() and found.min() > 0:
                _KEPT[key] = found
    return _KEPT.get(key, np.ones(shape, np.float32))


def measure_scales(request: ModelRequest, open_model: Callable[[ModelRequest], LanguageModel]) -> None:
    """Measure the scales, unless they are kept, with float32 keys and values. Raises as `open_model` does."""
    path = request.root / request.entry.gguf
    metadata, digest = read_metadata(path), weights_digest(request.root, path)
    scales_of(digest, path, metadata)
    key = digest or _state(path)
    if key in _KEPT:
        return
    entry = replace(request.entry, context=min(request.entry.context, _LENGTH + 1))
    needs = [need for need in request.needs if need != INT8_KV]
    rng = np.random.default_rng(0)
    starts = [metadata.contents.integer(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")]
    found = []
    with closing(open_model(replace(request, entry=entry, needs=needs))) as model:
        notice(f"the scales of 8-bit keys and values of the {request.name} are measured once")
        with work("measuring keys and values, texts", _TEXTS) as advance:
            for text in range(_TEXTS):
                found.append(calibrate_scales(model, [[starts[text % 2]]], length=_LENGTH, rng=rng))
                advance(1)
    _KEPT[key] = np.max(found, axis=0)
    if (kept := _path(digest)) is not None:
        with suppress(OSError), aside(kept) as fresh, fresh.open("wb") as file:
            np.save(file, _KEPT[key])


def _state(path: Path) -> tuple[Path, int, int]:
    state = path.stat()
    return path.resolve(), state.st_mtime_ns, state.st_size


def _path(digest: str) -> Path | None:
    folder = cache_folder(FOLDER) if digest else None
    return None if folder is None else folder / f"{digest[:32]}.kv1.npy"
