"""What a model's header says, and which engine runs the model here. Headers are read once and kept in the cache."""

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
from edgedecode.gguf.architectures import ENCODERS
from edgedecode.gguf.contents import TYPE_NAMES, Contents, read_contents
from edgedecode.gguf.header import header_of
from edgedecode.gguf.tokenizer_kinds import TOKENIZER_FILE, check_tokenizer
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.text.chat_template import ChatTemplate

from .stored import StoredModel

_LAYOUT = 2
"""To be incremented when `Facts` changes, or how they are read."""
_UNUSED = 5
"""ggml's type of tokens that pad the vocabulary."""


@dataclass(frozen=True, slots=True)
class Facts:
    """weights: the types of the layers' matrices, the most common first. tokenizer: equal for models that may draft for
    each other. engines: those that run it. refused: why none does."""

    architecture: str = ""
    weights: str = ""
    parameters: int = 0
    context: int = 0
    tokenizer: str = ""
    engines: tuple[str, ...] = ()
    refused: str = ""


def facts_of(model: StoredModel) -> Facts:
    """Return the facts of a model; one that cannot be read, or that no engine runs, is refused."""
    if model.problem:
        return Facts(refused=model.problem)
    try:
        path = _kept_path(model.path)
        with suppress(OSError, ValueError, TypeError):
            if path is not None:
                return kept_json(path, Facts)
        facts = _of_pack(model.path) if model.path.is_dir() else _of_file(model.path)
    except (EdgeDecodeError, OSError) as error:
        return Facts(refused=" ".join(str(error).split()))
    if path is not None and USUAL in facts.engines:  # what does not run so today may tomorrow
        keep_json(path, asdict(facts))
    return facts


def _kept_path(path: Path) -> Path | None:
    file = path / "edgedecode.json" if path.is_dir() else path
    state, folder = file.stat(), cache_folder("headers")
    engines = [factory.engine_version() for factory in _factories().values()]
    beside = path.with_name(TOKENIZER_FILE).is_file()
    key = facts_key(_LAYOUT, beside, file.resolve(), state.st_size, state.st_mtime_ns, state.st_ino, engines)
    return None if folder is None else folder / f"{key}.json"


def _of_pack(root: Path) -> Facts:
    manifest = Manifest.load(root)
    entry = manifest.located("target")
    return _facts(entry, root, entry.quantization or f"{entry.bits} bits", tokenizer=manifest.tokenizer_digest)


def _of_file(path: Path) -> Facts:
    contents = read_contents(path, arrays=True)
    header, kind = header_of(contents, path), contents.fields.get("general.type", "model")
    if kind != "model":
        raise ManifestError(f"{path} is not a language model but of the type {kind!r}: give the model's file")
    if not header.context:
        raise ManifestError(f"{path} does not declare its context length: download or convert it again")
    if ENCODERS.fullmatch(header.architecture):
        raise ManifestError(f"{path} is an encoder ({header.architecture}), which does not generate text")
    check_tokenizer(contents, path)
    if isinstance(template := contents.fields.get("tokenizer.chat_template"), str) and template:
        ChatTemplate(template)
    counted: Counter[str] = Counter()
    for tensor in contents.tensors.values():
        if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
            counted[TYPE_NAMES[tensor.type]] += prod(tensor.shape)
    entry = ModelEntry(  # what engines ask about a GGUF file before they open it
        architecture=header.architecture,
        rows=header.rows,
        context=header.context,
        hidden_size=header.hidden_size,
        layers=header.layers,
        kv_heads=max(1, header.kv_heads),
        head_size=max(1, header.head_size),
        parameters=sum(prod(tensor.shape) for tensor in contents.tensors.values()),
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
    weights = ", ".join(name for name, _ in counted.most_common())
    return _facts(entry, path.parent, weights, tokenizer=_tokenizer_digest(contents))


def _tokenizer_digest(contents: Contents) -> str:
    """Return a digest of what makes two files tokenize alike; padding at the end does not count."""
    fields, arrays = contents.fields, contents.arrays
    tokens: list[object] = list(arrays.get("tokenizer.ggml.tokens", ()))
    for place, kind in enumerate(arrays.get("tokenizer.ggml.token_type", ())[: len(tokens)]):
        if kind == _UNUSED:
            tokens[place] = None
    while tokens and tokens[-1] is None:
        tokens.pop()
    model = fields.get("tokenizer.ggml.model", "")
    splits = fields.get("tokenizer.ggml.pre", "default") if model == "gpt2" else ""
    text = repr((model, splits, tokens, arrays.get("tokenizer.ggml.merges", ())))
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16] if tokens else ""


def not_on_kernels(entry: ModelEntry, root: Path) -> str:
    """Return, in a line, which engine alone runs a model, and why others do not; empty: our kernels run it."""
    engines, refused = _engines(entry, root)
    if USUAL in engines:
        return ""
    return f"{f'only {engines[0]}' if engines else 'no engine here'} runs it: {'; '.join(refused)}"


def _facts(entry: ModelEntry, root: Path, weights: str, *, tokenizer: str) -> Facts:
    engines, refused = _engines(entry, root)
    facts = Facts(entry.architecture, weights, entry.parameters, entry.context, tokenizer, engines)
    return facts if engines else replace(facts, refused="; ".join(refused))


def _engines(entry: ModelEntry, root: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the engines that run the model on the processor, and the reasons of the others."""
    engines, refused = [], []
    for name, factory in _factories().items():
        if factory.engine_version() is None:
            refused.append(f"{name}: not installed (pip install 'edgedecode[{name}]')")
        elif refusal := factory.refusal(entry, root, name="target", provider="cpu", needs=()):
            refused.append(f"{name}: {refusal.reason}")
        else:
            engines.append(name)
    return tuple(engines), refused


def _factories() -> dict[str, RuntimeFactory]:
    """Return the engines that answer questions by name, the usual one first."""
    found = {}
    for name in sorted(installed(RUNTIMES), key=lambda name: (name != USUAL, name)):
        with suppress(RuntimeUnavailable):
            if isinstance(factory := find_factory(name), RuntimeFactory):
                found[name] = factory
    return found
