"""llama.cpp's tokens of texts. A child process asks it, which alone ends if native code crashes."""

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedecode.engines.child import ChildReply, ask_child, child_command, tell_parent
from edgedecode.errors import ExportError

_WRONG_BUILD = ("SIGILL", "SIGSEGV")
"""Signals that point to a build for another processor."""
_MIN_SECONDS = 180.0
_READ_RATE = 10e6
"""Bytes per second below which llama.cpp is considered hung."""


def engine_installed() -> bool:
    """Return whether llama-cpp-python is installed, without importing it."""
    return find_spec("llama_cpp") is not None


def engine_tokens(
    file: Path, texts: Sequence[str], *, special: Sequence[str] = (), whole: bool = False
) -> list[list[int]]:
    """Return llama.cpp's ids of texts: of `special`, in which special tokens are recognized, then of `texts`.

    All texts are tokenized by one child process. whole: load the tensors too, so that a missing, unknown or misshapen
    one is an error. Raises ExportError if llama.cpp cannot read the file, crashes or hangs.
    """
    command = child_command(f"{__name__}:tokenize_child")
    if command is None:
        raise ExportError("llama.cpp runs in a child process, which a frozen application cannot start")
    seconds = _MIN_SECONDS + (file.stat().st_size if file.is_file() else 0) / _READ_RATE
    order = {"file": str(file), "special": list(special), "texts": list(texts), "whole": whole}
    reply = ask_child(command, seconds=seconds, given=json.dumps(order))
    if not reply.ended:
        raise ExportError(
            f"llama.cpp did not tokenize within {seconds:.0f} s and was stopped: try again when the machine is idle"
        )
    if reply.failure:
        raise ExportError(f"llama.cpp failed to tokenize: {_reason(reply)}")
    ids: list[list[int]] = reply.told[0]
    return ids


def _reason(reply: ChildReply) -> str:
    if reply.signal in _WRONG_BUILD:
        return f"{reply.failure}, which is typical of a build for another processor: build it for this one"
    return f"{reply.failure}: {reply.words}" if reply.signal else reply.words or reply.failure


def tokenize_child() -> None:
    """Run in the child process: read the order from standard input, and pass the ids back."""
    import llama_cpp

    order = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = not order["whole"]
    parameters.use_extra_bufts = False  # do not repack weights, since nothing is computed
    model = llama_cpp.llama_model_load_from_file(order["file"].encode(), parameters)
    if not model:
        raise SystemExit("llama.cpp cannot read the file")
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    found = [_ids(vocabulary, text.encode(), special=True) for text in order["special"]]
    tell_parent(found + [_ids(vocabulary, text.encode(), special=False) for text in order["texts"]])


def _ids(vocabulary: Any, text: bytes, *, special: bool) -> list[int]:  # noqa: ANN401  (a pointer)
    import llama_cpp

    room = 2 * len(text) + 8
    found = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), found, room, special, True)
    if count < 0:
        raise SystemExit(f"llama.cpp makes {-count} tokens of {len(text)} bytes")
    ids: Sequence[int] = found[:count]
    return list(ids)
