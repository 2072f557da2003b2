"""The child process of `llama_calls`: reads one request as JSON from standard input, writes one reply.

A crash in native code then ends only this process.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.engines.child import tell_parent


def main() -> None:
    import llama_cpp

    order = json.load(sys.stdin)
    llama_cpp.llama_backend_init()
    answer = _tokenized(order) if order["verb"] == "tokenize" else _quantized(order)
    tell_parent(answer)


def _tokenized(order: dict[str, Any]) -> list[list[int]]:
    """Open a file, or only its vocabulary, and tokenize texts; special tokens are recognized in those of `special`."""
    import llama_cpp

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = not order["whole"]
    parameters.use_extra_bufts = False  # do not repack weights, since nothing is computed
    model = llama_cpp.llama_model_load_from_file(order["file"].encode(), parameters)
    if not model:
        raise SystemExit("llama.cpp cannot read the file")
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    return [
        _ids(vocabulary, text.encode(), special=kind == "special")
        for kind in ("special", "texts")
        for text in order[kind]
    ]


def _ids(vocabulary: Any, text: bytes, *, special: bool) -> list[int]:  # noqa: ANN401  (a pointer)
    import llama_cpp

    room = 2 * len(text) + 8
    found = (llama_cpp.llama_token * room)()
    count = llama_cpp.llama_tokenize(vocabulary, text, len(text), found, room, special, True)
    if count < 0:
        raise SystemExit(f"llama.cpp makes {-count} tokens of {len(text)} bytes")
    ids: Sequence[int] = found[:count]
    return list(ids)


def _quantized(order: dict[str, Any]) -> bool:
    """Quantize a file with one of llama.cpp's mixtures."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{order['kind']}")
    columns = _columns(order["importance"]) if order["importance"] else {}
    entries = _entries(columns)  # keep a reference to both until the call returns
    if columns:
        parameters.imatrix = entries
    status = llama_cpp.llama_model_quantize(order["source"].encode(), order["out"].encode(), ctypes.byref(parameters))
    if status:
        raise SystemExit(f"llama_model_quantize returned {status}")
    return True


def _columns(path: str) -> dict[str, FloatArray]:
    with np.load(path) as arrays:
        return {name: np.ascontiguousarray(arrays[name], np.float32) for name in arrays.files}


def _entries(columns: dict[str, FloatArray]) -> Any:  # noqa: ANN401  (a ctypes array)
    """Return an importance matrix as llama.cpp's array of entries, terminated by one without a name."""
    import llama_cpp.llama_cpp as api

    entries = (api.llama_model_imatrix_data * (len(columns) + 1))()
    for entry, (name, values) in zip(entries, columns.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries
