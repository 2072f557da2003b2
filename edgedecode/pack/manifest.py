"""Reads and writes a pack's manifest: its models, graphs and files, as JSON.

A pack is a folder with `edgedecode.json`, a tokenizer, and for each role one weights file and small graphs over it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Annotated

from msgspec import Meta

from edgedecode.duplicate_names import unique_keys
from edgedecode.errors import CapabilityError, ManifestError, cause
from edgedecode.sampling.weights import sampling_table
from edgedecode.typed_json import Count, Finite, JsonValue, Positive, Share, typed

from .engine_equality import Equality
from .entries import (
    DRAFT,
    DRAFT_ADAPTER,
    TRIM,
    ActivationsEntry,
    AdapterEntry,
    CompiledEntry,
    FileEntry,
    OutsideFile,
    SwitchCurve,
    plain_path,
)

FORMAT = "edgedecode-pack"
VERSION = 1
MANIFEST_NAME = "edgedecode.json"
STACKS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that a model or a graph may fuse into one, stacked by their outputs in this order."""
_MOST_NBYTES = 1 << 20
"""Largest manifest; a model of a hundred layers with adapters needs a third of this."""
_Rows = Annotated[int, Meta(ge=1, le=1 << 24)]
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
    rows: _Rows
    context: _Rows
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


@dataclass(frozen=True, slots=True)
class _Header:
    """The fields that decide whether this version can read the rest."""

    format: str
    version: Positive


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of `edgedecode.json`. `models` maps a role (target, draft) to its entry."""

    name: str
    created_by: str
    tokenizer: str
    tokenizer_digest: str
    vocabulary_size: _Rows
    chat_template: str | None = field(default=None, kw_only=True)
    generation: Generation
    models: Mapping[str, ModelEntry]
    files: Mapping[str, FileEntry]
    outside: Mapping[str, OutsideFile] = field(default_factory=dict)
    """Files that an import uses in place, by the name that model and adapter entries use for them."""
    adapters: Mapping[str, AdapterEntry] = field(default_factory=dict)
    switching: SwitchCurve | None = None
    """The calibrated curve of entropy switching; None: never calibrated."""

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """Read and check the manifest of the pack at `root`. Raises ManifestError with a one-line remedy."""
        path = root / MANIFEST_NAME
        if not root.is_dir():
            raise ManifestError(f"{root} is not a folder: {_making(root)}")
        try:
            text = _read(path)
        except FileNotFoundError:
            raise ManifestError(f"{root} is not a pack, it has no {MANIFEST_NAME}: {_making(root)}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path} cannot be read: {cause(error)}") from None
        try:
            return cls.from_json(json.loads(text, object_pairs_hook=unique_keys))
        except ValueError as error:  # JSONDecodeError, and Python's refusal of numbers of thousands of digits
            raise ManifestError(f"{path} is not JSON: {error}; export the pack again") from None
        except RecursionError:
            raise ManifestError(f"{path} is nested too deeply to be a manifest") from None

    @classmethod
    def from_json(cls, value: JsonValue) -> Manifest:
        """Check a parsed manifest. Raises ManifestError naming the field."""
        try:
            header = typed(value, _Header, "manifest")
            if header.format != FORMAT:
                raise ManifestError(f"the manifest's format is {header.format!r}, not {FORMAT!r}: this is not a pack")
            if header.version > VERSION:
                raise ManifestError(
                    f"the pack has format version {header.version}, this edgedecode reads up to {VERSION}: "
                    f"upgrade edgedecode"
                )
            manifest = typed(_with_sampling(value), cls, "manifest")
        except ValueError as error:
            raise ManifestError(f"{error}; export the pack again") from None
        files = {plain_path(name): entry for name, entry in manifest.files.items()}
        outside = {plain_path(name): entry for name, entry in manifest.outside.items()}
        manifest = replace(manifest, files=files, outside=outside)
        manifest._check()
        return manifest

    def to_json(self) -> str:
        """Render as indented JSON, keys in declaration order."""
        value = {"format": FORMAT, "version": VERSION, **asdict(self)}
        value["generation"] |= value["generation"].pop("sampling")
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    @property
    def end_ids(self) -> frozenset[int]:
        """The end tokens that can be generated: the source may also list padded rows, which are never sampled."""
        return frozenset(id for id in self.generation.end_token_ids if id < self.vocabulary_size)

    @property
    def upgrade(self) -> str:
        """What to do about a pack that a later version may have made."""
        return f"or upgrade edgedecode: the pack was created by {self.created_by[:40]}"

    @property
    def nbytes(self) -> int:
        """Size of all listed files."""
        return sum(entry.nbytes for entry in self.files.values())

    def located(self, role: str) -> ModelEntry:
        """Return a role's entry as engines open it: files outside the pack are given by absolute path.

        TRIM is the draft model's entry with the trimmed graph. Raises CapabilityError if there is none.
        """
        entry = self._trimmed() if role == TRIM else self.models[role]
        return replace(entry, weights=self._place(entry.weights), gguf=self._place(entry.gguf))

    def located_adapter(self, name: str) -> AdapterEntry:
        """Return an adapter's entry as engines open it. Raises ManifestError for an unknown name."""
        if name not in self.adapters:
            if not self.adapters:
                raise ManifestError("the pack has no adapters: leave out --adapter")
            raise ManifestError(f"the pack has no adapter {name!r}; it has: {', '.join(self.adapters)}")
        entry = self.adapters[name]
        return replace(entry, file=self._place(entry.file))

    @property
    def has_draft_adapters(self) -> bool:
        """Whether the draft model has an adapter of its own for one of the target's."""
        return any(f"{DRAFT_ADAPTER}{name}" in self.adapters for name in self.adapters)

    def weights_nbytes(self, role: str) -> int:
        """Return the size of a role's weights file, in or outside the pack."""
        name = self.models[role].weights
        return (self.outside.get(name) or self.files[name]).nbytes

    def named(self) -> set[str]:
        """Return the files of the pack that an entry of the manifest refers to."""
        named = {self.tokenizer} | ({self.chat_template} if self.chat_template is not None else set())
        for entry in self.models.values():
            named |= {entry.weights, *([entry.gguf] if entry.gguf else [])} - set(self.outside)
            named |= {name for graph in entry.graphs.values() for name in graph.files} | ({entry.gguf_plan} - {""})
            named |= set(entry.trimmed.graph.files) if entry.trimmed is not None else set()
        adapters = {name for adapter in self.adapters.values() for name in (adapter.file, adapter.config) if name}
        return named | (adapters - set(self.outside))

    def _trimmed(self) -> ModelEntry:
        entry = self.models.get(DRAFT)
        if entry is None or entry.trimmed is None:
            raise CapabilityError("this pack has no trimmed draft: `edgedecode trim PACK` adds one")
        graph = entry.trimmed.graph
        rows = self.files[graph.token_ids].nbytes // ID_NBYTES
        less = (entry.rows - rows) * entry.hidden_size
        return replace(
            entry, rows=rows, parameters=entry.parameters - less, graphs={"base": graph}, gguf="", gguf_plan=""
        )

    def _place(self, name: str) -> str:
        outside = self.outside.get(name)
        return outside.path if outside is not None else name

    def _check(self) -> None:
        for name in sorted(self.named()):
            plain_path(name)
        for name, entry in self.outside.items():
            entry.check(name)
        if "target" not in self.models:
            raise ManifestError("the manifest names no target model: export the pack again")
        rows = self.models["target"].rows
        if beyond := [id for id in self.generation.end_token_ids if id >= rows]:
            raise ManifestError(f"the manifest names the end token {beyond[0]}, the target has {rows} rows")
        if unknown := sorted({adapter.role for adapter in self.adapters.values()} - set(self.models)):
            raise ManifestError(f"an adapter is for the model {unknown[0]!r}, which the pack lacks: import it again")
        if any(entry.trimmed is not None and not entry.trimmed.graph.token_ids for entry in self.models.values()):
            raise ManifestError("manifest.models.draft.trimmed.graph has no token_ids: run `edgedecode trim` again")
        if missing := sorted(self.named() - set(self.files)):
            raise ManifestError(
                f"the manifest lists no size and digest for {', '.join(missing)}: export the pack again"
            )


def _making(source: Path) -> str:
    """Return advice on how to make a pack of a model's file or folder, which was given in place of a pack."""
    inside = sorted(source.glob("*.gguf"))[:1] if source.is_dir() else [source]
    if (source / "genai_config.json").exists() or any(source.glob("*.onnx")):
        model = f"import --onnx {quote(str(source))}"
    elif (source / "config.json").exists():
        model = f"export --target {quote(str(source))}"
    elif inside and inside[0].suffix == ".gguf":
        model = f"import --target {quote(str(inside[0]))}"
    else:
        return "give the folder of a pack (made by `edgedecode export` or `edgedecode import`)"
    return f"make a pack of it with `edgedecode {model} --out PACK`, then give PACK"


def _read(path: Path) -> str:
    """Return a manifest's text. Refuses links, special files and oversized files before reading."""
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise ManifestError(
            f"{path} is a link, as in the Hugging Face cache: give the hub id (owner/name), or copy the pack with "
            f"`cp -rL`"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_NBYTES:
        what = f"it has {found.st_size} bytes" if stat.S_ISREG(found.st_mode) else "it is not a regular file"
        raise ManifestError(f"{path} is not a manifest: {what}; export the pack again")
    with path.open("rb") as file:
        return file.read(_MOST_NBYTES).decode("utf-8")


def _with_sampling(value: JsonValue) -> JsonValue:
    """Return the manifest with its sampling values moved to a mapping. Raises ValueError for an invalid number."""
    generation = value.get("generation") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(generation, dict):
        return value
    sampling: dict[str, JsonValue] = {}
    for option in sampling_table():
        if (given := generation.get(option.name)) is not None:
            field_path = f"manifest.generation.{option.name}"
            sampling[option.name] = typed(given, Count if option.whole else Finite, field_path)
    return {**value, "generation": {**generation, "sampling": sampling}}
