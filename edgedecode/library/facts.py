"""What a model's header says, and which engine runs the model here. Headers are read once and kept in the cache."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import prod
from pathlib import Path

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.engine_factory import RuntimeFactory
from edgedecode.engines.registry import RUNTIMES, find_factory, installed
from edgedecode.engines.selection import USUAL
from edgedecode.errors import EdgeDecodeError, ManifestError, RuntimeUnavailable
from edgedecode.gguf.contents import TYPE_NAMES, Contents, read_contents
from edgedecode.gguf.header import Header, header_of
from edgedecode.pack.manifest import Manifest, ModelEntry

from .stored import StoredModel

__all__ = ["Facts", "facts_of"]

_LAYOUT = 1
"""To be incremented when `Facts` changes, or how they are read."""
_UNUSED = 5
"""ggml's type of tokens that pad the vocabulary."""


@dataclass(frozen=True, slots=True)
class Facts:
    """weights: the types of the layers' matrices, the most common first. tokenizer: equal for models that may draft for
    each other. engines: those that run it. fault: why none does."""

    architecture: str = ""
    weights: str = ""
    parameters: int = 0
    context: int = 0
    tokenizer: str = ""
    engines: tuple[str, ...] = ()
    fault: str = ""


def facts_of(model: StoredModel) -> Facts:
    """Return the facts of a model; one that cannot be read, or that no engine runs, has a fault."""
    if model.problem:
        return Facts(fault=model.problem)
    try:
        path = _kept_path(model.path)
        with suppress(OSError, ValueError, TypeError):
            kept = kept_json(path, Facts) if path is not None else Facts(fault="unknown")
            if not kept.fault:
                return kept
        facts = _of_pack(model.path) if model.path.is_dir() else _of_file(model.path)
    except (EdgeDecodeError, OSError) as error:
        return Facts(fault=" ".join(str(error).split()))
    if path is not None and USUAL in facts.engines:  # what does not run so today may tomorrow
        keep_json(path, asdict(facts))
    return facts


def _kept_path(path: Path) -> Path | None:
    folder = cache_folder("headers")
    file = path / "edgedecode.json" if path.is_dir() else path
    state = file.stat()
    engines = [factory.engine_version() for _, factory in _factories()]
    key = facts_key(_LAYOUT, file.resolve(), state.st_size, state.st_mtime_ns, state.st_ino, engines)
    return None if folder is None else folder / f"{key}.json"


def _of_pack(root: Path) -> Facts:
    manifest = Manifest.load(root)
    entry = manifest.models["target"]
    facts = Facts(
        architecture=entry.architecture,
        weights=entry.quantization or f"{entry.bits} bits",
        parameters=entry.parameters,
        context=entry.context,
        tokenizer=manifest.tokenizer_digest,
    )
    return _with_engines(facts, manifest.located("target"), root)


def _of_file(path: Path) -> Facts:
    contents = read_contents(path, arrays=True)
    header = header_of(contents, path)
    facts = Facts(
        architecture=header.architecture,
        weights=", ".join(_types(contents)),
        parameters=sum(prod(tensor.shape) for tensor in contents.tensors.values()),
        context=header.context,
        tokenizer=_tokenizer_digest(contents),
    )
    if contents.fields.get("general.type", "model") != "model" or not header.context:
        raise ManifestError(f"{path} is no language model, but {contents.fields.get('general.type', 'unknown')}")
    return _with_engines(facts, _entry(header, facts, path), path.parent)


def _types(contents: Contents) -> list[str]:
    counted: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            counted[TYPE_NAMES[tensor.type]] += prod(tensor.shape)
    return [name for name, _ in counted.most_common()]


def _tokenizer_digest(contents: Contents) -> str:
    """Return a digest of what makes two files tokenize alike; padding at the end does not count."""
    fields, arrays = contents.fields, contents.arrays
    tokens = list(arrays.get("tokenizer.ggml.tokens", ()))
    kinds = list(arrays.get("tokenizer.ggml.token_type", ()))
    used: list[object] = [None if kind == _UNUSED else token for token, kind in zip(tokens, kinds, strict=False)]
    used = used or list(tokens)
    while used and used[-1] is None:
        used.pop()
    model = fields.get("tokenizer.ggml.model", "")
    splits = fields.get("tokenizer.ggml.pre", "default") if model == "gpt2" else ""
    merges = arrays.get("tokenizer.ggml.merges", ())
    return sha256(repr((model, splits, used, merges)).encode("utf-8", "replace")).hexdigest()[:16] if used else ""


def _entry(header: Header, facts: Facts, path: Path) -> ModelEntry:
    """Return an entry with what engines ask about a GGUF file before they open it."""
    return ModelEntry(
        architecture=header.architecture,
        rows=header.rows,
        context=header.context,
        hidden_size=header.hidden_size,
        layers=header.layers,
        kv_heads=max(1, header.kv_heads),
        head_size=max(1, header.head_size),
        parameters=max(1, facts.parameters),
        weights=path.name,
        graphs={},
        bits=16,
        block_size=0,
        head_bits=16,
        license="",
        source="",
        window=header.window,
        gguf=path.name,
    )


def _with_engines(facts: Facts, entry: ModelEntry, root: Path) -> Facts:
    """Return the facts with the engines that run the model on the processor, or the usual engine's reason."""
    found, faults = [], []
    for name, factory in _factories():
        if factory.engine_version() is None:
            faults.append(f"{name}: not installed (pip install 'edgedecode[{name}]')")
        elif refusal := factory.refusal(entry, root, name="target", provider="cpu", needs=()):
            faults.append(f"{name}: {refusal.reason}")
        else:
            found.append(name)
    return replace(facts, engines=tuple(found), fault="" if found else "; ".join(faults))


def _factories() -> list[tuple[str, RuntimeFactory]]:
    """Return the engines that answer questions, the usual one first."""
    found = []
    for name in sorted(installed(RUNTIMES), key=lambda name: (name != USUAL, name)):
        with suppress(RuntimeUnavailable):
            factory = find_factory(name)
            if isinstance(factory, RuntimeFactory):
                found.append((name, factory))
    return found
