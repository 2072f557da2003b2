"""What a manifest keeps beside its models' sizes: files, adapters, widths of activations, a draft's trim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgedecode.errors import ManifestError
from edgedecode.typed_json import Amount, Count, Finite, Positive, Share

__all__ = [
    "ADAPTERS",
    "TRIM_NAMES",
    "ActivationsEntry",
    "ActivationsWay",
    "AdapterEntry",
    "FileEntry",
    "OutsideFile",
    "ProductError",
    "TrimCategory",
    "TrimEntry",
    "plain_path",
]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the pack: its size in bytes and the sha256 of its content, in hex."""

    nbytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class OutsideFile:
    """A weights file or adapter that an import uses where it lies: absolute path, size in bytes, sha256 in hex."""

    path: str
    nbytes: Count
    sha256: str

    def check(self, name: str) -> None:
        """Raise ManifestError for a path that may not be opened, or names a file that is not called as `name` is.

        A graph finds its weights by their bare name, which therefore stays the same.
        """
        where, text, path = f"manifest.outside.{name}.path", self.path, Path(self.path)
        same = path.name == PurePosixPath(name).name
        if text.replace("\\", "/").startswith("//"):  # Windows names itself to another machine that a path leads to
            raise ManifestError(f"{where} {text!r} lies on another machine or is a device: refused; import with --copy")
        if not text.isprintable() or not path.is_absolute() or ".." in path.parts or not same:
            raise ManifestError(f"{where} {text!r} is not an absolute path of a file called like {name!r}: refused")


def plain_path(name: str) -> str:
    """Return the pack-relative path `name`, refusing whatever could leave the pack."""
    path = PurePosixPath(name)
    plain = name.isprintable() and "\\" not in name and ":" not in name
    if not plain or not path.parts or path.is_absolute() or ".." in path.parts:
        raise ManifestError(f"the manifest names the file {name!r}, which is not a plain path inside the pack: refused")
    return str(path)


ADAPTERS = "adapters"
"""The folder of a pack that holds its adapters."""


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """A LoRA adapter: what PEFT saved, or a GGUF file. Size and digest stand where its files are listed."""

    file: str
    """A name of `Manifest.files` or `Manifest.outside`, or an absolute path once located."""
    role: str
    """The model it was made for."""
    rank: Positive
    """The largest of its matrices."""
    alpha: Finite
    """What each product is scaled by, times the product's own rank, unless PEFT's configuration says otherwise."""
    modules: tuple[str, ...]
    """The projections it changes, by their names in PEFT's `target_modules`."""
    invocation: tuple[Count, ...] = ()
    """Activated LoRA: the tokens from which on it applies; empty: everywhere."""
    config: str = ""
    """PEFT's configuration, whose matrices the file holds; empty: a GGUF file."""


@dataclass(frozen=True, slots=True)
class ProductError:
    """What rounding a product's inputs to 8 and to 16 bits puts into its outputs, as a share of what they vary by."""

    at8: Amount
    at16: Amount


@dataclass(frozen=True, slots=True)
class ActivationsWay:
    """The whole model with all products at one width, or as chosen: how it does beside float activations."""

    agreement: Share
    """Share of positions whose leading token is that of float activations."""
    step_ms: Amount | None = None
    """A pass over one row; None: not measured, as for the times below."""
    c4: Amount | None = None
    """What a pass over 4 rows costs, in passes over one."""
    c8: Amount | None = None


@dataclass(frozen=True, slots=True)
class ActivationsEntry:
    """The widths of a model's activations."""

    asked: str
    """`auto` or `16`: where `8` was asked for, nothing is measured and there is no entry."""
    wide: tuple[str, ...]
    """The products with 16 bits, as `projection_name` names them: those that read one input share a name."""
    products: Mapping[str, ProductError] = field(default_factory=dict)
    ways: Mapping[str, ActivationsWay] = field(default_factory=dict)
    """By `8`, `16` (all products so) and, where that is neither, `chosen`."""
    text: str = ""
    """What it was measured on, in words."""
    kernels: str = ""
    """The kernels that ran; empty: the engine's own, which have float activations in the place of 16 bits."""

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.wide) - set(self.products)):
            raise ValueError(f"wide names {unknown[0]!r}, which is not among its products")

    @property
    def way(self) -> ActivationsWay | None:
        """Return how the model does as chosen."""
        return self.ways.get("chosen") or self.ways.get("8" if not self.wide else "16")


TRIM_NAMES = {
    "heads": ("heads.onnx", "heads-2.onnx"),
    "trim": ("trim.ids", "trim-2.ids"),
    "gguf": ("trim.gguf", "trim-2.gguf"),
}
"""Each of a trim's files has two names: what replaces a file never has its name, so that both can lie there for a
moment."""


@dataclass(frozen=True, slots=True)
class TrimCategory:
    """A kind of text: how much of it the trimmed vocabulary knows, and what drafts were worth with it and without."""

    tokens: Count
    """How long the text was."""
    coverage: Share
    """Share of its tokens that are kept."""
    acceptance: Finite
    """Tokens a round with the trimmed draft, the target's own included, at the draft length `TrimEntry.length`."""
    acceptance_full: Finite
    """The same with the whole draft."""
    speed_up: Finite | None = None
    """Times over plain decoding at each one's best length, predicted from measured costs; None: not measured."""
    speed_up_full: Finite | None = None
    mbsu: Finite | None = None
    """The same where memory alone decides."""
    mbsu_full: Finite | None = None
    measured: Finite | None = None
    """Times over plain decoding of whole answers, where they were timed."""
    measured_full: Finite | None = None


@dataclass(frozen=True, slots=True)
class TrimEntry:
    """A draft's smaller head. Sizes and digests of its files stand where files are listed."""

    size: Positive
    token_ids: str
    """The map from its rows to ids: int32, little-endian, ascending."""
    gguf: str = ""
    """The trimmed draft as a GGUF file of its own; empty: there is none."""
    recommended: bool = False
    """Whether the report said that it wins: then it drafts by default."""
    runtime: str = ""
    """The engine it was measured on; on others it is no default."""
    bound: Finite | None = None
    """The share of held-out text that a recommended size knows at least."""
    step_share: Finite | None = None
    """What a drafted token takes with it, as a share of what it takes with the whole head."""
    length: Positive = 4
    """The draft length that `TrimCategory.acceptance` speaks of."""
    calibration: str = ""
    """What tokens were counted on, in a line."""
    categories: Mapping[str, TrimCategory] | None = None
    """None: no report was made."""
    warnings: tuple[str, ...] = ()
    """Where it loses, a sentence each."""
