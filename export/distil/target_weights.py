"""What a new head or draft model takes from its target's GGUF file: sizes, and matrices as floats."""

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from edgedecode.errors import ExportError
from edgedecode.gguf.contents import BLOCKS, read_contents
from edgedecode.gguf.header import EMBEDDING, OUTPUT


class TargetWeights:
    """A target's file. Raises ExportError for one that is damaged, or lacks a field or tensor."""

    def __init__(self, path: Path) -> None:
        self._path, self._contents = path, read_contents(path)
        self.architecture = str(self._contents.fields["general.architecture"])
        """As llama.cpp names it."""

    @property
    def layers(self) -> int:
        return self.integer("block_count")

    @property
    def rows(self) -> int:
        """The width of the logits."""
        return self._contents.tensors[self._head].shape[1]

    @property
    def head(self) -> Tensor:
        """The matrix of the logits, [ids, hidden]."""
        return self.matrix(self._head)

    @property
    def embedding(self) -> Tensor:
        return self.matrix(EMBEDDING)

    @property
    def _head(self) -> str:
        return OUTPUT if OUTPUT in self._contents.tensors else EMBEDDING

    def integer(self, name: str, default: int = 0) -> int:
        if found := self._contents.integer(f"{self.architecture}.{name}") or default:
            return found
        raise ExportError(f"{self._path} has no field {self.architecture}.{name}")

    def number(self, name: str, default: float) -> float:
        found = self._contents.fields.get(f"{self.architecture}.{name}", default)
        return float(found) if isinstance(found, (int, float)) else default

    def matrix(self, name: str) -> Tensor:
        """Return a tensor in float32, outer size first."""
        tensor = self._contents.tensors.get(name)
        if tensor is None:
            raise ExportError(f"{self._path} has no tensor {name}")
        block, nbytes = BLOCKS[tensor.type]
        data = np.fromfile(
            self._path, np.uint8, count=tensor.nbytes, offset=self._contents.start + tensor.offset
        ).reshape(-1, tensor.shape[0] // block * nbytes)
        values = dequantize(data, GGMLQuantizationType(tensor.type))
        return torch.from_numpy(np.ascontiguousarray(values.reshape(tensor.shape[::-1]), np.float32))
