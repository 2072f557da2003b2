"""A pack's manifest: what models, graphs and files it holds. Reads and writes JSON; opens no model.

A pack is a folder with `edgedecode.json`, a tokenizer, and for each role one weights file and small graphs over it.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from edgedecode.duplicate_names import add_once
from edgedecode.errors import ManifestError

from .activations_entry import ActivationsEntry
from .adapter_entry import AdapterEntry
from .engine_equality import Equality
from .entries import FileEntry, OutsideFile, plain_path
from .json_fields import Fields, JsonValue
from .trim_report import TrimEntry

__all__ = [
    "FORMAT",
    "MANIFEST_NAME",
    "STACKS",
    "VERSION",
    "ActivationsEntry",
    "AdapterEntry",
    "FileEntry",
    "Generation",
    "Graph",
    "Manifest",
    "ModelEntry",
    "OutsideFile",
    "TrimEntry",
]

FORMAT = "edgedecode-pack"
VERSION = 1
MANIFEST_NAME = "edgedecode.json"
STACKS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Projections that a model or a graph may hold as one, stacked by their outputs in this order."""
_MOST_NBYTES = 1 << 20
"""Of a manifest; models of a hundred layers with adapters have one of a third of this."""
_MOST_ROWS, _MOST_CONTEXT, _MOST_LAYERS = 1 << 24, 1 << 24, 512
_MOST_WIDTH, _MOST_HEADS, _MOST_BITS, _MOST_BLOCK = 1 << 18, 1 << 12, 32, 1 << 16
"""No language model is larger than these; what is planned from a manifest stays small arithmetic."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph over a model's weights: `inputs` and `outputs` as declared, `capabilities` such as tree and rows.

    Capabilities in use: tree, rows, hidden (gives the last hidden state), lora (takes adapter matrices), concat (joins
    past and present itself, as optimum's graphs do: chains only), trim (has the smaller head of `HeadedModel`). Packs
    written earlier may say local too: another head, which nothing uses.
    """

    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    capabilities: tuple[str, ...]
    kv_type: str = "float32"
    """How keys and values are kept: float32, or int8 with a scale a channel."""
    lora_rank: int = 0
    """Largest rank of an adapter; 0: it takes none."""
    lora_modules: tuple[str, ...] = ()
    """The projections an adapter may change, by their names in PEFT's `target_modules`."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One role's model. Sizes are those of the architecture; `rows` is the logits' width, padding included."""

    architecture: str
    rows: int
    context: int
    hidden_size: int
    layers: int
    kv_heads: int
    head_size: int
    parameters: int
    weights: str
    """Its weights file: a name of `Manifest.files` or `Manifest.outside`, or an absolute path once `located`."""
    graphs: Mapping[str, Graph]
    bits: int
    block_size: int
    head_bits: int
    license: str
    source: str
    kernel_noise: float | None = None
    parity: Mapping[str, float] = field(default_factory=dict)
    window: int = 0
    """Positions that layers with a sliding window see, the row's own included; 0: every layer sees everything."""
    quantization: str = ""
    """The recipe's name where `bits` and `head_bits` do not say everything; else empty."""
    notes: tuple[str, ...] = ()
    """What a user must know of this export, a sentence each: a limited context, a plain chat template."""
    gguf: str = ""
    """The same model as one GGUF file, for llama.cpp; empty: there is none. Named as `weights` is."""
    equality: Equality | None = None
    """What `eval --equality` found last; None: two engines were never compared on it."""
    gguf_plan: str = ""
    """From what such a file is made when it is first used, where there is none; empty: it cannot be."""
    trim: TrimEntry | None = None
    """A smaller vocabulary of it, for drafts; None: it was never trimmed."""
    activations: ActivationsEntry | None = None
    """How many bits products round their inputs to; None: to 8 bits, or as an imported graph says."""

    @classmethod
    def of(cls, fields: Fields) -> ModelEntry:
        """Check a parsed entry field by field. Raises ManifestError naming the field."""
        return _model(fields)


@dataclass(frozen=True, slots=True)
class Generation:
    """Defaults for decoding, from the base model's `generation_config.json`; None: the source did not say."""

    end_token_ids: tuple[int, ...]
    bos_token: str = ""
    eos_token: str = ""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The whole of `edgedecode.json`. `models` maps a role (target, draft) to its entry."""

    name: str
    created_by: str
    tokenizer: str
    tokenizer_digest: str
    vocabulary_size: int
    chat_template: str | None
    generation: Generation
    models: Mapping[str, ModelEntry]
    files: Mapping[str, FileEntry]
    outside: Mapping[str, OutsideFile] = field(default_factory=dict)
    """Files that stayed where they were imported from, by the name that an entry has for them."""
    adapters: Mapping[str, AdapterEntry] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """Read and check the manifest of the pack at `root`. Raises ManifestError: one line that says what to do."""
        path = root / MANIFEST_NAME
        if not root.is_dir():
            raise ManifestError(f"{root} is not a folder: give the folder of a pack (made by `edgedecode export`)")
        try:
            text = _read(path)
        except FileNotFoundError:
            raise ManifestError(
                f"{root} is not a pack: it has no {MANIFEST_NAME} (make one with `edgedecode export`)"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{path} cannot be read: {error}") from None
        try:
            return cls.from_json(json.loads(text, object_pairs_hook=_object))
        except ValueError as error:  # JSONDecodeError, and Python's refusal of numbers of thousands of digits
            raise ManifestError(f"{path} is not JSON: {error}; export the pack again") from None
        except RecursionError:
            raise ManifestError(f"{path} is nested too deeply to be a manifest") from None

    @classmethod
    def from_json(cls, value: JsonValue) -> Manifest:
        """Check a parsed manifest field by field. Raises ManifestError naming the field."""
        top = Fields.of(value, "manifest")
        if top.text("format") != FORMAT:
            raise ManifestError(f"the manifest's format is {top.text('format')!r}, not {FORMAT!r}: this is not a pack")
        version = top.integer("version", low=1)
        if version > VERSION:
            raise ManifestError(
                f"the pack has format version {version}, this edgedecode reads up to {VERSION}: upgrade edgedecode"
            )
        manifest = cls(
            name=top.text("name"),
            created_by=top.text("created_by"),
            tokenizer=plain_path(top.text("tokenizer")),
            tokenizer_digest=top.text("tokenizer_digest"),
            vocabulary_size=top.integer("vocabulary_size", low=1, high=_MOST_ROWS),
            chat_template=None if (chat := top.optional_text("chat_template")) is None else plain_path(chat),
            generation=_generation(top.child("generation")),
            models={role: _model(child) for role, child in top.children("models")},
            files={plain_path(name): FileEntry.of(child) for name, child in top.children("files")},
            outside={plain_path(name): OutsideFile.of(name, child) for name, child in _optional(top, "outside")},
            adapters={name: AdapterEntry.of(child) for name, child in _optional(top, "adapters")},
        )
        manifest._check()
        return manifest

    def to_json(self) -> str:
        """Render as indented JSON, keys in declaration order."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"

    @property
    def end_ids(self) -> frozenset[int]:
        """The end tokens that can be said: of padded rows, which the source may name too, none ever is."""
        return frozenset(id for id in self.generation.end_token_ids if id < self.vocabulary_size)

    @property
    def nbytes(self) -> int:
        """Size of all listed files."""
        return sum(entry.nbytes for entry in self.files.values())

    def located(self, role: str) -> ModelEntry:
        """Return a role's entry as engines open it: weights that lie outside the pack are named by absolute path."""
        entry = self.models[role]
        return replace(entry, weights=self._place(entry.weights), gguf=self._place(entry.gguf))

    def located_adapter(self, name: str) -> AdapterEntry:
        """Return an adapter's entry as engines open it. Raises ManifestError for a name that the pack has not."""
        if name not in self.adapters:
            if not self.adapters:
                raise ManifestError("the pack has no adapters: leave out --adapter")
            raise ManifestError(f"the pack has no adapter {name!r}; it has: {', '.join(self.adapters)}")
        entry = self.adapters[name]
        return replace(entry, file=self._place(entry.file))

    def weights_nbytes(self, role: str) -> int:
        """Return the size of a role's weights file, wherever it lies."""
        name = self.models[role].weights
        return (self.outside.get(name) or self.files[name]).nbytes

    def named(self) -> set[str]:
        """Return the files of the pack that something in it reads."""
        named = {self.tokenizer} | ({self.chat_template} if self.chat_template else set())
        for entry in self.models.values():
            named |= {entry.weights, *([entry.gguf] if entry.gguf else [])} - set(self.outside)
            named |= {graph.file for graph in entry.graphs.values()} | ({entry.gguf_plan} - {""})
            if entry.trim is not None:
                named |= {entry.trim.token_ids, entry.trim.gguf} - {""}
        return named | ({adapter.file for adapter in self.adapters.values()} - set(self.outside))

    def _place(self, name: str) -> str:
        outside = self.outside.get(name)
        return outside.path if outside is not None else name

    def _check(self) -> None:
        if "target" not in self.models:
            raise ManifestError("the manifest names no target model: export the pack again")
        rows = self.models["target"].rows
        if beyond := [id for id in self.generation.end_token_ids if id >= rows]:
            raise ManifestError(f"the manifest names the end token {beyond[0]}, the target has {rows} rows")
        if foreign := sorted({adapter.role for adapter in self.adapters.values()} - set(self.models)):
            raise ManifestError(f"an adapter is for the model {foreign[0]!r}, which the pack has not: import it again")
        if missing := sorted(self.named() - set(self.files)):
            raise ManifestError(
                f"the manifest lists no size and digest for {', '.join(missing)}: export the pack again"
            )


def _optional(top: Fields, key: str) -> Iterator[tuple[str, Fields]]:
    """Return the children of what packs did not always have."""
    return top.children(key) if key in top.values else iter(())


def _read(path: Path) -> str:
    """Return a manifest's text: of an ordinary file, whose size is told before it is read."""
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


def _object(pairs: list[tuple[str, JsonValue]]) -> JsonValue:
    """Return a JSON object. Raises ValueError for a key that it has twice: readers differ in which one they take."""
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        add_once(found, key, value, what="key")
    return found


def _graph(fields: Fields) -> Graph:
    inputs, outputs = fields.texts("inputs"), fields.texts("outputs")
    if not inputs or not outputs:
        raise ManifestError(f"{fields.where} has no {'outputs' if inputs else 'inputs'}: export the pack again")
    return Graph(
        file=plain_path(fields.text("file")),
        inputs=inputs,
        outputs=outputs,
        capabilities=fields.texts("capabilities"),
        kv_type=fields.optional_text("kv_type") or "float32",
        lora_rank=fields.optional_integer("lora_rank", high=_MOST_WIDTH) or 0,
        lora_modules=fields.texts("lora_modules") if "lora_modules" in fields.values else (),
    )


def _model(fields: Fields) -> ModelEntry:
    return ModelEntry(
        architecture=fields.text("architecture"),
        rows=fields.integer("rows", low=1, high=_MOST_ROWS),
        context=fields.integer("context", low=1, high=_MOST_CONTEXT),
        hidden_size=fields.integer("hidden_size", low=1, high=_MOST_WIDTH),
        layers=fields.integer("layers", low=1, high=_MOST_LAYERS),
        kv_heads=fields.integer("kv_heads", low=1, high=_MOST_HEADS),
        head_size=fields.integer("head_size", low=1, high=_MOST_HEADS),
        parameters=fields.integer("parameters", low=1),
        weights=plain_path(fields.text("weights")),
        graphs={name: _graph(child) for name, child in fields.children("graphs")},
        bits=fields.integer("bits", low=1, high=_MOST_BITS),
        block_size=fields.integer("block_size", low=0, high=_MOST_BLOCK),
        head_bits=fields.integer("head_bits", low=1, high=_MOST_BITS),
        license=fields.text("license"),
        source=fields.text("source"),
        kernel_noise=fields.optional_number("kernel_noise"),
        parity=fields.numbers("parity"),
        window=fields.optional_integer("window", high=_MOST_CONTEXT) or 0,
        quantization=fields.optional_text("quantization") or "",
        notes=fields.texts("notes") if "notes" in fields.values else (),
        gguf=plain_path(gguf) if (gguf := fields.optional_text("gguf")) else "",
        equality=None if fields.values.get("equality") is None else Equality.of(fields.child("equality")),
        gguf_plan=plain_path(plan) if (plan := fields.optional_text("gguf_plan")) else "",
        trim=None if fields.values.get("trim") is None else TrimEntry.of(fields.child("trim")),
        activations=None
        if fields.values.get("activations") is None
        else ActivationsEntry.of(fields.child("activations")),
    )


def _generation(fields: Fields) -> Generation:
    return Generation(
        end_token_ids=fields.integers("end_token_ids"),
        bos_token=fields.optional_text("bos_token") or "",
        eos_token=fields.optional_text("eos_token") or "",
        temperature=fields.optional_number("temperature"),
        top_k=fields.optional_integer("top_k"),
        top_p=fields.optional_number("top_p"),
        min_p=fields.optional_number("min_p"),
        repetition_penalty=fields.optional_number("repetition_penalty"),
        max_tokens=fields.optional_integer("max_tokens"),
    )
