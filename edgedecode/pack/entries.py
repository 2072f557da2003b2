"""The entries of a manifest: models with their graphs, files, adapters, activation widths, switching curves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from msgspec import Meta

from edgedecode.errors import ManifestError
from edgedecode.typed_json import Amount, Count, Finite, Positive, Share

from .engine_equality import Equality

STACKS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that a model or a graph may fuse into one, stacked by their outputs in this order."""
Rows = Annotated[int, Meta(ge=1, le=1 << 24)]
_Window = Annotated[int, Meta(ge=0, le=1 << 24)]
_Layers = Annotated[int, Meta(ge=1, le=512)]
_Width = Annotated[int, Meta(ge=1, le=1 << 18)]
_Rank = Annotated[int, Meta(ge=0, le=1 << 18)]
_Heads = Annotated[int, Meta(ge=1, le=1 << 12)]
_Bits = Annotated[int, Meta(ge=1, le=32)]
_Block = Annotated[int, Meta(ge=0, le=1 << 16)]
"""Limits that no language model exceeds; they keep arithmetic on manifest values small."""
ID_NBYTES = 4
"""Bytes of a token id in `Graph.token_ids`."""
_Names = Annotated[tuple[str, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the pack: its size in bytes and the sha256 of its content, in hex."""

    nbytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """A weights file or adapter that an import uses in place: absolute path, size in bytes, sha256 in hex."""

    path: str
    nbytes: Count
    sha256: str

    def check(self, name: str) -> None:
        """Raise ManifestError for a path that may not be opened, or whose file name differs from that of `name`.

        A graph finds its weights by their bare file name, so the name must stay the same.
        """
        where, text, path = f"manifest.outside.{name}.path", self.path, Path(self.path)
        same = path.name == PurePosixPath(name).name
        if text.replace("\\", "/").startswith("//"):  # Windows authenticates the user to a UNC host
            raise ManifestError(f"{where} {text!r} is on another machine or is a device: refused; import with --copy")
        if not text.isprintable() or not path.is_absolute() or ".." in path.parts or not same:
            raise ManifestError(
                f"{where} {text!r} is not an absolute path with the same file name as {name!r}: refused"
            )


def plain_path(name: str) -> str:
    """Return the pack-relative path `name`. Raises ManifestError for a path that could leave the pack."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and ":" not in name
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts:
        raise ManifestError(f"the manifest names the file {name!r}, which is not a plain path inside the pack: refused")
    return str(path)


ADAPTERS = "adapters"
"""The folder of a pack that holds its adapters."""
DRAFT_ADAPTER = "draft:"
"""Begins the name of an adapter of the draft model, which drafts with it where the target uses the rest of the name."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A LoRA adapter: a PEFT folder or a GGUF file. Its size and digest are in `Manifest.files` or `.outside`."""

    file: str
    """A name of `Manifest.files` or `Manifest.outside`, or an absolute path once located."""
    role: str
    """The model it was trained for."""
    rank: Positive
    """The largest rank of its matrices."""
    alpha: Finite
    """Each product is scaled by alpha / its rank, unless PEFT's configuration specifies another scaling."""
    modules: tuple[str, ...]
    """The projections it changes, by their names in PEFT's `target_modules`."""
    invocation: tuple[Count, ...] = ()
    """Activated LoRA: the adapter applies from this token sequence on; empty: everywhere."""
    config: str = ""
    """PEFT's configuration file, where `file` holds PEFT's matrices; empty: `file` is a GGUF file."""


@dataclass(frozen=True, slots=True)
class ProductError:
    """The output error from rounding a product's inputs to 8 and to 16 bits, relative to the outputs' variation."""

    at8: Amount
    at16: Amount


@dataclass(frozen=True, slots=True)
class ActivationsWay:
    """Quality of the full model with all products at one width, or at the chosen widths."""

    agreement: Share
    """Share of positions with the same top token as float activations."""


@dataclass(frozen=True, slots=True)
class ActivationsEntry:
    """The activation widths of a model's products."""

    asked: str
    """`auto` or `16`; for `8` nothing is measured and the manifest has no entry."""
    wide: tuple[str, ...]
    """The products with 16-bit inputs, by `projection_name`: products that share an input share a name."""
    products: Mapping[str, ProductError] = field(default_factory=dict)
    ways: Mapping[str, ActivationsWay] = field(default_factory=dict)
    """Keys: `8` and `16` (all products at that width), and `chosen` where the choice is neither."""
    text: str = ""
    """Description of the calibration text."""
    kernels: str = ""
    """The kernels measured; empty: the engine's own, which use float activations in place of 16 bits."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.wide) - set(self.products)):
            raise ValueError(f"wide names {unknown[0]!r}, which is not among its products")

    @property
    def way(self) -> ActivationsWay | None:
        """Return the measurements at the chosen widths."""
        return self.ways.get("chosen") or self.ways.get("8" if not self.wide else "16")


NPU_FOLDER = "npu"
"""The folder of a pack that holds compiled graphs, in a folder for each chip or group of chips."""
STATIC, GGUF, DRAFTING_HEAD = "static", "gguf", "head"
"""Capabilities of graphs: static ones (`static_graphs.py`), which only providers that need them ask for; those that are
built from a GGUF file, which is then the graph's file; those of drafting heads."""
STATIC_PREFIX = "static-"
"""Begins the file names of static graphs, which lie next to the weights."""


@dataclass(frozen=True, slots=True)
class CompiledEntry:
    """A static graph compiled ahead of time for an NPU: a small graph file that names a binary next to it."""

    file: str
    binary: str
    provider: str
    """The provider that opens it: qnn."""
    socs: tuple[Positive, ...]
    """The systems on chip it was compiled for, by Qualcomm's numbers."""
    sdk: str = ""
    """Version of the compiler; a device's driver must not be older."""
    agreement: Share | None = None
    """Share of positions where the emulator chose the processor's token; None: not run on the emulator."""


DRAFT, TRIM, HEAD = "draft", "trim", "head"
"""The names of a pack's draft models: the full one, the one with a smaller vocabulary, and the drafting head."""
HEAD_NAMES = "head/head.gguf", "head/head-2.gguf"
DRAFT_FOLDERS = "draft", "draft-2"
TRIM_NAMES = {"graph": ("trim.onnx", "trim-2.onnx"), "ids": ("trim.ids", "trim-2.ids")}
"""A head's file, a draft's folder and each file of a trimmed draft have two names, so that the old and the new one can
exist at once."""


@dataclass(frozen=True, slots=True)
class SwitchPoint:
    """One threshold, measured on the calibration prompts."""

    up: Amount
    """Hand over to the target at this signal."""
    accuracy: Share
    """Share of the prompts that were answered correctly."""
    quality: Amount
    """The accuracy over the target's; may exceed 1."""
    quality_low: Amount
    """Lower bound of the quality, one-sided, 95%: a paired bootstrap over the prompts."""
    target_share: Share
    """Share of the tokens that the target wrote or verified."""
    speed: Amount
    """Tokens per second, prompts included, over those of the target alone with plain decoding."""


@dataclass(frozen=True, slots=True)
class SwitchCurve:
    """The points of one signal, and where they come from."""

    signal: str
    points: tuple[SwitchPoint, ...]
    prompts: Positive
    prompts_digest: str
    target_accuracy: Share
    draft_accuracy: Share
    engine: str
    """Engine and version; the speeds are this machine's, the rest holds for any."""
    models: str
    """Digest of both models' weights: a curve of other models is not used."""
    tokens: Count = 0
    """Tokens that the target wrote for all prompts."""

    def threshold(self, quality: float) -> SwitchPoint | None:
        """Return the point with the least share of the target that keeps this quality by its lower bound, or None."""
        kept = [point for point in self.points if point.quality_low >= quality]
        return min(kept, key=lambda point: point.target_share, default=None)


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph over a model's weights, with its declared inputs and outputs.

    Capabilities: tree, rows, lora (takes adapter matrices), static (fixed shapes, see `width` and `slots`; returns only
    the new rows of the cache).
    """

    file: str
    inputs: _Names
    outputs: _Names
    capabilities: tuple[str, ...]
    kv_type: str = "float32"
    """Type of the KV cache: float32, or int8 with one scale per channel."""
    lora_rank: _Rank = 0
    """Largest rank of an adapter; 0: adapters are not supported."""
    lora_modules: tuple[str, ...] = ()
    """The projections an adapter may change, by their names in PEFT's `target_modules`."""
    width: _Window = 0
    """Rows of every pass of a static graph; 0: any number."""
    slots: _Window = 0
    """Past positions that a static graph attends to; 0: any number."""
    compiled: tuple[CompiledEntry, ...] = ()
    """The same graph compiled for NPUs."""
    token_ids: str = ""
    """The file with the token id of each row of logits, int32, little-endian, ascending; empty: a row is its id."""

    @property
    def files(self) -> tuple[str, ...]:
        """The graph's own files: its ONNX file, the ids of its rows and what was compiled from it."""
        ids = (self.token_ids,) if self.token_ids else ()
        return (self.file, *ids, *(name for each in self.compiled for name in (each.file, each.binary)))


@dataclass(frozen=True, slots=True)
class TrimmedDraft:
    """The draft model with a smaller vocabulary: a graph over the same weights file, which holds the rows it keeps."""

    graph: Graph
    runtime: str
    """The engine it was measured on; it drafts by default on that engine only."""
    coverage: Share | None = None
    """Share of held-out tokens that its vocabulary has; None: not measured (so too for the speed-ups)."""
    speed_up: Finite | None = None
    """Over plain decoding, from measured passes and acceptance."""
    speed_up_full: Finite | None = None
    """The same of the full draft model."""

    @property
    def is_faster(self) -> bool:
        """Whether it drafts faster than the full draft model, or neither was measured."""
        return self.speed_up is None or self.speed_up_full is None or self.speed_up > self.speed_up_full


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One role's model. Sizes are those of the architecture; `rows` is the logits' width, padding included."""

    architecture: str
    rows: Rows
    context: Rows
    hidden_size: _Width
    layers: _Layers
    kv_heads: _Heads
    head_size: _Heads
    parameters: Positive
    weights: str
    """The weights file: a name of `Manifest.files` or `Manifest.outside`, or an absolute path once `located`."""
    graphs: Mapping[str, Graph]
    bits: _Bits
    block_size: _Block
    head_bits: _Bits
    license: str
    source: str
    kernel_noise: Finite | None = None
    parity: Mapping[str, Finite] = field(default_factory=dict)
    window: _Window = 0
    """Positions visible to sliding-window layers, including the row's own; 0: no layer has a window."""
    quantization: str = ""
    """The recipe's name where `bits` and `head_bits` do not describe the quantization completely; else empty."""
    notes: tuple[str, ...] = ()
    """Limits of this export that a user must know, a sentence each: a limited context, a plain chat template."""
    gguf: str = ""
    """The same model as one GGUF file for llama.cpp, a name as in `weights`; empty: the pack has none."""
    equality: Equality | None = None
    """The latest result of `eval --equality`; None: never run."""
    gguf_plan: str = ""
    """The plan for building a GGUF file at first use, where the pack has none; empty: it cannot be built."""
    trimmed: TrimmedDraft | None = None
    """The same draft model with a smaller vocabulary; None: never trimmed."""
    activations: ActivationsEntry | None = None
    """Bits that products round their inputs to; None: 8 bits, or as in an imported graph."""
    taps: tuple[_Window, ...] = ()
    """Of a drafting head: the target's layers whose inputs it reads; their number: what follows the final norm."""

    own_tokenizer: str = ""
    """A draft's own tokenizer, a file of the pack, where its tokens are not the target's; empty: the pack's."""

    @property
    def takes_adapters(self) -> bool:
        """Whether ONNX Runtime opens a graph with an adapter's matrices: one of the pack, or of its GGUF file."""
        if self.gguf and not self.graphs:
            from edgedecode.gguf.architectures import BY_NAME
            from edgedecode.gguf.gguf_names import gguf_name

            return gguf_name(self.architecture) in BY_NAME
        return any("lora" in graph.capabilities for graph in self.graphs.values())


@dataclass(frozen=True, slots=True)
class Generation:
    """Defaults for decoding, from the base model's `generation_config.json`; None: not specified there."""

    end_token_ids: tuple[Count, ...]
    bos_token: str = ""
    eos_token: str = ""
    sampling: Mapping[str, int | Finite] = field(default_factory=dict)
    """Option name of `SamplingOptions` → value. In the JSON file these are fields of `generation` itself."""
    max_tokens: Count | None = None
