"""Calls llama.cpp's tokenizer and quantizer in a child process, if llama-cpp-python is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from edgedecode.engines.child import ask_child, child_command
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.typed_json import JsonValue

K_QUANTS = ("Q4_K_M", "Q5_K_M", "Q6_K")
"""The supported mixtures of llama.cpp's quantizer."""
_WRONG_BUILD = ("SIGILL", "SIGSEGV")
"""Signals that point to a build for another processor."""
_MIN_SECONDS = 180.0
_READ_RATE, _QUANTIZE_RATE = 10e6, 2e6
"""Bytes per second below which llama.cpp is considered hung; two busy cores quantize ten times faster than that."""


def engine_installed() -> bool:
    """Return whether llama-cpp-python is installed, without importing it."""
    return find_spec("llama_cpp") is not None


def require_engine() -> None:
    """Raise RuntimeUnavailable, with the pip command, if llama-cpp-python is missing."""
    if not engine_installed():
        raise RuntimeUnavailable("K-quants are made by llama.cpp, which is not installed: pip install llama-cpp-python")


def engine_tokens(
    file: Path, texts: Sequence[str], *, special: Sequence[str] = (), whole: bool = False
) -> list[list[int]]:
    """Return llama.cpp's ids of texts: of `special`, in which special tokens are recognized, then of `texts`.

    All texts are tokenized by one child process. whole: load the tensors too, so that a missing, unknown or misshapen
    one is an error.

    Raises ExportError if llama.cpp cannot read the file or crashes.
    """
    order: dict[str, JsonValue] = {"file": str(file), "special": list(special), "texts": list(texts), "whole": whole}
    answer = _ask({"verb": "tokenize", **order}, seconds=_timeout(file, rate=_READ_RATE))
    assert isinstance(answer, list)
    return [[int(str(id)) for id in ids] for ids in answer if isinstance(ids, list)]


def quantize_file(source: Path, out: Path, *, kind: str, importance: Path | None = None) -> None:
    """Quantize a float file into a mixture; `importance`: a file of `imatrix.write_importance`.

    Raises ExportError if llama.cpp fails, crashes or times out.
    """
    order: dict[str, JsonValue] = {"source": str(source), "out": str(out), "kind": kind}
    order["importance"] = str(importance) if importance is not None else None
    _ask({"verb": "quantize", **order}, seconds=_timeout(source, rate=_QUANTIZE_RATE))


def _timeout(file: Path, *, rate: float) -> float:
    """Return the timeout in seconds for a file, at `rate` bytes per second."""
    return _MIN_SECONDS + (file.stat().st_size if file.is_file() else 0) / rate


def _ask(order: Mapping[str, JsonValue], *, seconds: float) -> JsonValue:
    verb, command = order["verb"], child_command(f"{__package__}.llama_child:main")
    if command is None:
        raise ExportError(
            f"llama.cpp failed to {verb}: it runs in a child process, which a frozen application cannot start"
        )
    reply = ask_child(command, seconds=seconds, given=json.dumps(order))
    if not reply.ended:
        raise ExportError(
            f"llama.cpp did not {verb} within {seconds:.0f} s and was stopped: export again when the machine is less "
            f"busy, or without gguf among the --formats"
        )
    if reply.failure:
        why = f"{reply.failure}: {reply.words}" if reply.signal else reply.words or reply.failure
        if reply.signal in _WRONG_BUILD:
            why = f"{reply.failure}, which is typical of a build for another processor: build it for this one"
        raise ExportError(f"llama.cpp failed to {verb}: {why}")
    (answer,) = reply.told
    return cast(JsonValue, answer)
