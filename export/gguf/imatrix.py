"""The importance matrix for llama.cpp's quantizer: the weight of squared errors in each column of a tensor.

A column's importance is the mean square of its input on some text. It is measured with the torch network, or read from
a file made by llama.cpp's `llama-imatrix`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import Architecture

from ..graph.recipe import EMBEDDING, HEAD, projection_name
from .tensors import Tensor, tensor_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TensorImportance = Mapping[str, FloatArray]
"""llama.cpp's tensor name → float32 [columns]."""

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MIN_RELATIVE = 1e-6
"""Minimum importance of a column, relative to the mean, so that columns unused by the text are not ignored."""


def named_importance(
    found: Mapping[str, FloatArray], network: PreTrainedModel, *, layout: Architecture, layers: int
) -> dict[str, FloatArray]:
    """Rename importance from projections to llama.cpp's tensor names; matrices with the same input share it."""
    own = {"lm_head": HEAD, "model.embed_tokens": EMBEDDING}
    named: dict[str, FloatArray] = {}
    for name, parameter in network.named_parameters():
        module = name.removesuffix(".weight")
        values = found.get(own.get(module, projection_name(module)))
        if parameter.dim() == 2 and values is not None:
            named[tensor_name(name, layout, layers=layers)] = _floored(values)
    return named


def check_imatrix(path: Path) -> None:
    """Raise ExportError if the file is not an importance matrix, or is damaged."""
    _read(path)


def read_imatrix(path: Path, tensors: Sequence[Tensor]) -> dict[str, FloatArray]:
    """Read the importance of these tensors from a file of llama.cpp's `llama-imatrix`.

    Raises ExportError if the file is of another kind, damaged, or made with another model.
    """
    sums = _read(path)
    wanted = {tensor.name: tensor.shape[1] for tensor in tensors if len(tensor.shape) == 2}
    known = {name: values for name, values in sums.items() if name in wanted}
    wrong = [name for name, values in known.items() if len(values) != wanted[name]]
    if wrong or not known:
        what = f"its {wrong[0]} has {len(known[wrong[0]])} columns" if wrong else "it names none of the tensors"
        raise ExportError(f"the importance matrix {path} was made with another model: {what}")
    return {name: _floored(values) for name, values in known.items()}


def write_importance(path: Path, importance: TensorImportance) -> None:
    """Write an .npz with one array per matrix, for the child process that quantizes."""
    with path.open("wb") as file:
        np.savez(file, **dict(importance))  # type: ignore[arg-type]  # numpy's stubs take the names for its options


def _read(path: Path) -> dict[str, FloatArray]:
    """Return mean squares by tensor name. Raises ExportError."""
    import gguf

    wrong = f"{path} is not an importance matrix: give the GGUF file that llama.cpp's llama-imatrix writes"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ExportError(f"the importance matrix {path} cannot be read ({error.strerror or error})") from None
    if magic != b"GGUF":
        raise ExportError(f"{wrong} (the older .dat format is not supported)")
    try:
        tensors = {tensor.name: np.asarray(tensor.data, np.float32) for tensor in gguf.GGUFReader(path).tensors}
    except Exception as error:  # the reader does not validate its input, so a damaged file can raise anything
        raise ExportError(f"{wrong}; it cannot be read ({type(error).__name__})") from None
    found: dict[str, FloatArray] = {}
    for name, total in tensors.items():
        counts = tensors.get(name.removesuffix(_SUMS) + _COUNTS)
        if not name.endswith(_SUMS) or counts is None or counts.size != 1:
            continue  # the counts themselves, and experts, which no supported model has
        count = float(counts.reshape(-1)[0])
        found[name.removesuffix(_SUMS)] = np.asarray(total.reshape(-1) / max(count, 1.0), np.float32)
    if not found:
        raise ExportError(wrong)
    if bad := [name for name, values in found.items() if not np.isfinite(values).all() or (values < 0).any()]:
        raise ExportError(f"the importance matrix {path} has negative or non-finite values for {bad[0]}")
    return found


def _floored(values: FloatArray) -> FloatArray:
    """Raise values to a positive minimum, because the quantizer divides by their sums."""
    mean = float(values.mean(dtype=np.float64))
    if mean <= 0:
        return np.ones_like(values)
    return np.asarray(np.maximum(values, np.float32(mean * _MIN_RELATIVE)), np.float32)
