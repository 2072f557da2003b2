"""The child's side of every use of llama.cpp: one order as JSON on standard input, one answer on standard output.

Native code can end its process, by a signal or an assertion: only this one. Run as a child, never imported.
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
    """Open a file, or its vocabulary alone, and turn texts into ids, special tokens spelled in them included."""
    import llama_cpp

    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = not order["whole"]
    parameters.use_extra_bufts = False  # weights stay mapped: nothing is computed here
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
    assert count >= 0
    ids: Sequence[int] = found[:count]
    return list(ids)


def _quantized(order: dict[str, Any]) -> bool:
    """Quantize one file into another with llama.cpp's own mixtures."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{order['kind']}")
    columns = _columns(order["importance"]) if order["importance"] else {}
    entries = _entries(columns)  # both are held until the call returns
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
    """Return llama.cpp's list of an importance matrix, ended by an entry without a name."""
    import llama_cpp.llama_cpp as api

    entries = (api.llama_model_imatrix_data * (len(columns) + 1))()
    for entry, (name, values) in zip(entries, columns.items(), strict=False):
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return entries
