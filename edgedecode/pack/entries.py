"""Manifest entries other than models: files, adapters, activation widths, compiled graphs and a draft's trim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgedecode.errors import ManifestError
from edgedecode.typed_json import Amount, Count, Finite, Positive, Share


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


TRIM_NAMES = {
    "heads": ("heads.onnx", "heads-2.onnx"),
    "trim": ("trim.ids", "trim-2.ids"),
    "gguf": ("trim.gguf", "trim-2.gguf"),
}
"""Each trim file alternates between two names, so that the old and the new file can exist at the same time."""


@dataclass(frozen=True, slots=True)
class TrimCategory:
    """Results for one kind of text: coverage by the trimmed vocabulary, and drafting with the trimmed and full head."""

    tokens: Count
    """Length of the text."""
    coverage: Share
    """Share of its tokens that the trimmed vocabulary keeps."""
    acceptance: Finite
    """Tokens per round with the trimmed draft, including the target's own, at the draft length `TrimEntry.length`."""
    acceptance_full: Finite
    """The same with the full head."""
    speed_up: Finite | None = None
    """Predicted from measured costs, over baseline decoding, each head at its best length; None: not measured."""
    speed_up_full: Finite | None = None
    mbsu: Finite | None = None
    """Memory-bound speed-up: the prediction if only memory traffic counted."""
    mbsu_full: Finite | None = None
    measured: Finite | None = None
    """Speed-up over baseline decoding measured on full answers; None: not timed."""
    measured_full: Finite | None = None


@dataclass(frozen=True, slots=True)
class TrimEntry:
    """A draft's trimmed head. Sizes and digests of its files are in `Manifest.files`."""

    size: Positive
    token_ids: str
    """The map from its rows to token ids: int32, little-endian, ascending."""
    gguf: str = ""
    """The trimmed draft as a separate GGUF file; empty: none was written."""
    recommended: bool = False
    """Whether the report recommends it: then it drafts by default."""
    runtime: str = ""
    """The engine it was measured on; it is the default on that engine only."""
    bound: Finite | None = None
    """The minimum coverage of held-out text that a recommended size has."""
    step_share: Finite | None = None
    """Time per drafted token with the trimmed head, as a share of that with the full head."""
    length: Positive = 4
    """The draft length of `TrimCategory.acceptance`."""
    calibration: str = ""
    """One-line description of the text whose tokens were counted."""
    categories: Mapping[str, TrimCategory] | None = None
    """None: no report was made."""
    warnings: tuple[str, ...] = ()
    """Cases where the trimmed head loses, a sentence each."""
