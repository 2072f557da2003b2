"""Reads and writes a pack's manifest: its models, graphs and files, as JSON.

A pack is a folder with `edgedecode.json`, a tokenizer, and for each role one weights file and small graphs over it.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shlex import quote

from edgedecode.duplicate_names import unique_keys
from edgedecode.errors import CapabilityError, ManifestError, cause, stand_in
from edgedecode.sampling.weights import sampling_table
from edgedecode.text.thinking import Thinking
from edgedecode.typed_json import Count, Finite, JsonValue, Positive, typed

from .entries import (
    DRAFT,
    DRAFT_ADAPTER,
    HEAD,
    ID_NBYTES,
    STACKS,
    TRIM,
    AdapterEntry,
    FileEntry,
    Generation,
    Graph,
    ModelEntry,
    OutsideFile,
    Rows,
    SwitchCurve,
    TrimmedDraft,
    plain_path,
)

__all__ = ["STACKS", "Generation", "Graph", "Manifest", "ModelEntry", "TrimmedDraft"]

FORMAT = "edgedecode-pack"
VERSION = 1
MANIFEST_NAME = "edgedecode.json"
_MOST_NBYTES = 1 << 20
"""Largest manifest; a model of a hundred layers with adapters needs a third of this."""


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
    vocabulary_size: Rows
    chat_template: str | None = field(default=None, kw_only=True)
    generation: Generation
    models: Mapping[str, ModelEntry]
    files: Mapping[str, FileEntry]
    outside: Mapping[str, OutsideFile] = field(default_factory=dict)
    """Files that an import uses in place, by the name that model and adapter entries use for them."""
    adapters: Mapping[str, AdapterEntry] = field(default_factory=dict)
    switching: SwitchCurve | None = None
    """The calibrated curve of entropy switching; None: never calibrated."""
    thinking: Thinking | None = None
    """How the target thinks, by its chat template; None: it does not, or as the template says (older packs)."""
    head: ModelEntry | None = None
    """The drafting head, a GGUF file; None: the pack has none."""

    @classmethod
    def load(cls, root: Path) -> "Manifest":
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
            what = stand_in(text[:64].encode("utf-8", "replace")) or f"is not JSON: {error}; export the pack again"
            raise ManifestError(f"{path} {what}") from None
        except RecursionError:
            raise ManifestError(f"{path} is nested too deeply to be a manifest") from None

    @classmethod
    def from_json(cls, value: JsonValue) -> "Manifest":
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

        TRIM is the draft model's entry with the trimmed graph. Raises CapabilityError if there is none, or no HEAD.
        """
        if role == HEAD:
            if self.head is None:
                raise CapabilityError("this pack has no drafting head: `edgedecode head add PACK SOURCE` adds one")
            return self.head
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

    def check_same_tokens(self, verb: str) -> None:
        """Raise CapabilityError if the draft model has other tokens than the target, for a verb that compares them."""
        if DRAFT in self.models and self.models[DRAFT].own_tokenizer:
            raise CapabilityError(
                f"the draft model of {self.name} has a tokenizer of its own, and {verb} compares both models' tokens: "
                f"pair the target with a draft of its own family, or with none"
            )

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
            named |= {entry.own_tokenizer} - {""}
            named |= {name for graph in entry.graphs.values() for name in graph.files} | ({entry.gguf_plan} - {""})
            named |= set(entry.trimmed.graph.files) if entry.trimmed is not None else set()
        named |= set() if self.head is None else {self.head.gguf}
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
        if self.thinking is not None:
            self.thinking.check()
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
