"""The manifest's entry of a head."""

from math import prod

from edgedecode.pack.manifest import ModelEntry

from .head import Head

MOST_CONTEXT = 1024
"""Positions that a head keeps: of a longer text it reads the end, whose last features its target's state keeps."""


def head_entry(head: Head, *, file: str, bits: int, taps: tuple[int, ...], source: str) -> ModelEntry:
    """Return the entry of a head that is written to `file` with these bits, and reads these layers of the target."""
    shape = head.shape
    return ModelEntry(
        architecture=shape.kind,
        rows=shape.rows,
        context=min(shape.context, MOST_CONTEXT),
        hidden_size=shape.hidden,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        parameters=sum(prod(tensor.shape) for tensor in head.tensors.values()),
        weights=file,
        graphs={},
        bits=bits,
        block_size=32 if bits < 16 else 0,
        head_bits=bits,
        license=shape.license,
        source=source,
        window=shape.window,
        gguf=file,
        taps=taps,
    )
