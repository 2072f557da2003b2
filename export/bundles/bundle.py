"""The format of a bundle: `bundle.json`, which contains everything an app needs, and SHA256SUMS over every file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from stat import S_ISREG

from edgedecode.duplicate_names import unique_keys
from edgedecode.errors import ManifestError, cause
from edgedecode.pack.entries import FileEntry, plain_path
from edgedecode.pack.manifest import Generation
from edgedecode.typed_json import Amount, Count, JsonValue, Positive, Share, typed

BUNDLE_NAME = "bundle.json"
SUMS_NAME = "SHA256SUMS"
FORMAT, VERSION = "edgedecode-bundle", 1
MOST_TOLERANCE = 4.0
"""Largest tolerance of a self-test, in logits. Rounding between processors and engines explains a few tenths."""
_MOST_NBYTES = 4 << 20
"""Largest bundle.json."""


@dataclass(frozen=True, slots=True)
class BundleGraph:
    """A graph of a model as a provider opens it. width, slots: as in a pack's `Graph`; 0: any number."""

    file: str
    provider: str = "cpu"
    width: Count = 0
    slots: Count = 0
    binary: str = ""
    """The compiled graph's binary next to it; empty: there is none."""
    socs: tuple[Positive, ...] = ()
    """The chips it was compiled for, by Qualcomm's numbers; empty: every processor."""


@dataclass(frozen=True, slots=True)
class BundleModel:
    """One role's model. `rows` is the logits' width, padding included."""

    architecture: str
    rows: Positive
    context: Positive
    layers: Positive
    kv_heads: Positive
    head_size: Positive
    parameters: Positive
    license: str
    source: str
    window: Count = 0
    """Positions that sliding-window layers see; 0: there are none."""
    weights: str = ""
    graphs: tuple[BundleGraph, ...] = ()
    gguf: str = ""
    """The model for llama.cpp; empty: the bundle is for ONNX Runtime."""


@dataclass(frozen=True, slots=True)
class BundleAdapter:
    """A LoRA adapter: PEFT's matrices, a GGUF file, or the native library's."""

    file: str
    role: str
    rank: Positive


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """How the app decodes, and what memory and speed are expected of the device.

    holders: bytes by holder, as `edgedecode plan` names them; `app` is what an app holds without models.
    """

    device: str
    """The chip that it was made for; empty: for the class of devices with this memory."""
    memory_nbytes: Positive
    """The device's memory."""
    budget_nbytes: Positive
    """What the app may hold of it."""
    nbytes: Positive
    holders: Mapping[str, Count]
    context: Positive
    kv_type: str
    threads: Positive
    draft_length: Count
    """Most drafts of a round; 0: no speculation."""
    least_chance: Share
    """Drafting stops below this chance of the draft model's token."""
    tolerance: Mapping[str, Amount]
    """By provider, how far an expected token may be below the likeliest in the self-test, in logits."""
    tokens_per_second: Amount | None = None
    """Expected of plain decoding."""
    drafted_per_second: Amount | None = None
    """Expected with drafts, on texts like those of the acceptance rate."""
    profile: str = "assumed"
    """Where the speeds are from: `assumed`, or the name of a profile measured on the device."""
    cuts: tuple[str, ...] = ()
    """What the plan left out to fit the budget."""


@dataclass(frozen=True, slots=True)
class SelftestFiles:
    """prompts: texts as tokens. expected: the answers. rounds: what was drafted and chosen, for an app's own tests; for
    the native library, the requests and answers that `edgedecode-run --replay` compares."""

    prompts: str
    expected: str
    rounds: str


@dataclass(frozen=True, slots=True)
class _Header:
    format: str
    version: Positive


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of `bundle.json`; every path is relative to the bundle."""

    target: str
    """What it was made for, such as android-cpu."""
    name: str
    created_by: str
    abi: str
    """Android's names of processors, separated by spaces; `arm64`: not for Android."""
    min_sdk: Count
    """Android's API level; 0: not for Android."""
    runtime: tuple[str, ...]
    """Libraries that the app depends on: Maven coordinates, or pip requirements for Windows."""
    models: Mapping[str, BundleModel]
    vocabulary_size: Positive
    tokenizer: str
    tokenizer_digest: str
    chat_template: str | None
    generation: Generation
    plan: DevicePlan
    selftest: SelftestFiles
    files: Mapping[str, FileEntry]
    adapters: Mapping[str, BundleAdapter] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Programs of llama.cpp and their arguments; paths are relative to the bundle."""
    libraries: tuple[str, ...] = ()
    """Native libraries that the project has to fetch itself, because their licence forbids passing them on."""

    @classmethod
    def load(cls, root: Path) -> "Bundle":
        """Read the bundle at `root`. Raises ManifestError with one line."""
        path = root / BUNDLE_NAME
        try:
            if not S_ISREG(path.lstat().st_mode):
                raise ManifestError(f"{path} is not an ordinary file: make the bundle again")
            if path.stat().st_size > _MOST_NBYTES:
                raise ManifestError(f"{path} is too large to be a bundle's description")
            text = path.read_text(encoding="utf-8")
            value: JsonValue = json.loads(text, object_pairs_hook=unique_keys)
        except (FileNotFoundError, NotADirectoryError):
            raise ManifestError(
                f"{root} is not a bundle: it has no {BUNDLE_NAME} (make one with `edgedecode package`)"
            ) from None
        except OSError as error:
            raise ManifestError(f"{path} cannot be read: {cause(error)}") from None
        except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
            raise ManifestError(f"{path} is damaged ({cause(error)}): make the bundle again") from None
        return cls.from_json(value)

    @classmethod
    def from_json(cls, value: JsonValue) -> "Bundle":
        """Check a parsed description. Raises ManifestError naming the field."""
        try:
            header = typed(value, _Header, "bundle")
            if header.format != FORMAT:
                raise ManifestError(f"the format is {header.format!r}, not {FORMAT!r}: this is not a bundle")
            if header.version > VERSION:
                raise ManifestError(
                    f"the bundle has format version {header.version}, this edgedecode reads up to {VERSION}: upgrade "
                    f"edgedecode"
                )
            bundle = typed(value, cls, "bundle")
        except ValueError as error:
            raise ManifestError(f"{error}; make the bundle again") from None
        for name in (*bundle.files, *bundle.named()):
            plain_path(name)
        if lacking := sorted(bundle.named() - bundle.files.keys()):
            raise ManifestError(f"it refers to {lacking[0]}, which is not among its files; make the bundle again")
        if "target" not in bundle.models:
            raise ManifestError("it has no target model; make the bundle again")
        return bundle

    def to_json(self) -> str:
        """Render as indented JSON, keys in declaration order."""
        value = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    @property
    def for_native(self) -> bool:
        """Whether the native library runs it."""
        return self.tokenizer.startswith("native/")

    def named(self) -> set[str]:
        """Return the files that the description refers to."""
        named = {self.tokenizer, *asdict(self.selftest).values(), *([self.chat_template] if self.chat_template else ())}
        for model in self.models.values():
            named |= {model.weights, model.gguf}
            named |= {name for graph in model.graphs for name in (graph.file, graph.binary)}
        named |= {adapter.file for adapter in self.adapters.values()}
        return named - {""}


def write_bundle(root: Path, bundle: Bundle) -> None:
    """Write `bundle.json` and SHA256SUMS into a bundle whose files are complete."""
    text = bundle.to_json().encode()
    (root / BUNDLE_NAME).write_bytes(text)
    sums = {name: entry.sha256 for name, entry in bundle.files.items()}
    sums[BUNDLE_NAME] = hashlib.sha256(text).hexdigest()
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    (root / SUMS_NAME).write_bytes("".join(lines).encode())  # bytes: the same line ends on every system
