"""A model as the native library opens it: files that an engine writes, and the facts that go with them.

`native.json` has these values under the same names; `runtimes/native/src/pack/manifest.h` reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class NativeCache:
    """One layer's keys, or its values: their name in the graph behind `past_key_values.`, and their sizes."""

    name: str
    heads: int
    size: int


@dataclass(frozen=True, slots=True)
class NativeRecurrent:
    """A recurrent operator's memory: its name in the graph, a state's floats, and the floats of a row."""

    name: str
    values: int
    width: int


@dataclass(frozen=True, slots=True)
class NativeMemory:
    """Upper bounds in bytes, without what depends on the context and the rows of logits.

    loaded: weights, graph and session. workspace: of a pass. thread: of a pass, for each thread. arena: the limit of
    the engine's allocator.
    """

    loaded: int
    workspace: int
    thread: int
    arena: int


@dataclass(frozen=True, slots=True)
class NativeInput:
    """One matrix of an adapter: the graph's input, where its bytes are in the file, and its shape.

    The rank is at index 1 of an input that ends in `.a`, and at 0 of one in `.b`. Three sizes: bytes, else float32.
    """

    name: str
    offset: int
    shape: Sequence[int]


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    """An adapter's file, and all inputs of the graph that take an adapter. invocation: the tokens that activate it."""

    file: str
    inputs: Sequence[NativeInput]
    invocation: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NativeModel:
    """Files are named relative to the folder; tiles by the graph's input that is bound to them.

    weights: of initializers outside the graph; empty: there are none. given: another model's file of tiles, bound too.
    token_ids: int32, little-endian, the id of each row of logits; empty: a row is its id. features: the graph's
    outputs with what layers read. table: the embedding, as `ModelRequest.beside` of a head reads it; not in the file.
    """

    graph: str
    weights: str
    tiles: Mapping[str, str]
    given: Mapping[str, str]
    rows: int
    vocabulary_size: int
    context: int
    hidden: int
    head: bool
    """Whether it is a drafting head."""
    kv_type: str
    rows_per_pass: int
    logits_copies: int
    memory: NativeMemory
    caches: Sequence[NativeCache]
    recurrent: Sequence[NativeRecurrent] = ()
    token_ids: str = ""
    features: Sequence[str] = ()
    adapters: Mapping[str, NativeAdapter] = field(default_factory=dict)
    table: object = field(default=None, compare=False, repr=False)
