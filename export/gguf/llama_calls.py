"""llama.cpp, where it is installed, always in a child process: its tokenizer, and its quantizer for K-quants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from edgedecode.engines.child import ask_child, child_command
from edgedecode.errors import ExportError, RuntimeUnavailable
from edgedecode.typed_json import JsonValue

__all__ = ["K_QUANTS", "engine_installed", "engine_tokens", "quantize_file", "require_engine"]

K_QUANTS = ("Q4_K_M", "Q5_K_M", "Q6_K")
"""The mixtures of llama.cpp's quantizer that can be asked for."""
_UNSUITED = ("SIGILL", "SIGSEGV")
_LEAST_SECONDS = 180.0
_READ_RATE, _QUANTIZE_RATE = 10e6, 2e6
"""Bytes a second below which llama.cpp is taken to hang; two busy cores quantize ten times as fast, and read faster."""


def engine_installed() -> bool:
    """Return whether llama-cpp-python is installed, without importing it."""
    return find_spec("llama_cpp") is not None


def require_engine() -> None:
    """Raise RuntimeUnavailable, with the pip line, where llama-cpp-python is missing."""
    if not engine_installed():
        raise RuntimeUnavailable("K-quants are made by llama.cpp, which is not installed: pip install llama-cpp-python")


def engine_tokens(
    file: Path, texts: Sequence[str], *, special: Sequence[str] = (), whole: bool = False
) -> list[list[int]]:
    """Return the ids that llama.cpp reads texts as, first those of `special`, with the tokens it puts around them.

    One child process reads all of them. whole: open all of the file, so that a tensor which is missing, unknown or of
    another shape is an error.

    Raises ExportError when it cannot read the file, or dies of it.
    """
    order: dict[str, JsonValue] = {"file": str(file), "special": list(special), "texts": list(texts), "whole": whole}
    answer = _ask({"verb": "tokenize", **order}, seconds=patience(file, rate=_READ_RATE))
    assert isinstance(answer, list)
    return [[int(str(id)) for id in ids] for ids in answer if isinstance(ids, list)]


def quantize_file(source: Path, out: Path, *, kind: str, importance: Path | None = None) -> None:
    """Quantize a file of floats into a mixture; `importance`: what `importance.write_importance` wrote.

    Raises ExportError when llama.cpp refuses, dies of it, or does not come to an end.
    """
    order: dict[str, JsonValue] = {"source": str(source), "out": str(out), "kind": kind}
    order["importance"] = str(importance) if importance is not None else None
    _ask({"verb": "quantize", **order}, seconds=patience(source, rate=_QUANTIZE_RATE))


def patience(file: Path, *, rate: float) -> float:
    """Return how many seconds llama.cpp is given for a file, at `rate` bytes a second."""
    return _LEAST_SECONDS + (file.stat().st_size if file.is_file() else 0) / rate


def _ask(order: Mapping[str, JsonValue], *, seconds: float) -> JsonValue:
    verb, command = order["verb"], child_command(f"{__package__}.llama_child:main")
    if command is None:
        raise ExportError(f"llama.cpp failed to {verb}: it runs in a child process, and a frozen application has none")
    reply = ask_child(command, seconds=seconds, given=json.dumps(order))
    if not reply.ended:
        raise ExportError(
            f"llama.cpp did not {verb} within {seconds:.0f} s and was stopped: export again when the machine is less "
            f"busy, or without gguf among the --formats"
        )
    if reply.failure:
        why = f"{reply.failure}: {reply.words}" if reply.signal else reply.words or reply.failure
        if reply.signal in _UNSUITED:
            why = f"{reply.failure}, as builds for another processor do: build it for this one"
        raise ExportError(f"llama.cpp failed to {verb}: {why}")
    (answer,) = reply.told
    return cast(JsonValue, answer)
