"""Run an evaluation: compare, print the tables and the verdict, save the result."""

import hashlib
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edgedecode import InputError, LoadOptions, Message, Pair, load
from edgedecode.commands import print_json
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError
from edgedecode.library.find import find_pack
from edgedecode.open_pack import SMALLER_KV
from edgedecode.pack.engine_equality import Equality
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.weights_text import quantization
from edgedecode.text.prompts import Prompt, interleaved, read_prompts
from edgedecode.text.tokenizer import Tokenizer

from ..bundled_prompts import bundled_prompts
from ..interrupts import leaving_at_once
from ..machine import engine_versions
from ..manifest_results import save_result, saves_result
from .equality import EncodedPrompt, Setting, compare_engines, equality_of
from .kv_types import KvQuality, compare_types, installed_runtimes, refused_types, scoring_nbytes, types_to_compare
from .tables import KvFound, equality_json, equality_verdict, kv_json, kv_numbers, show_equality, show_kv_types

BOTH = ("onnx", "llama")
"""The default engines of --equality."""


@dataclass(frozen=True, slots=True)
class Found:
    """The results by role; empty: not asked for."""

    equality: dict[str, Equality] = field(default_factory=dict)
    kv_types: dict[str, KvFound] = field(default_factory=dict)


def run_evaluation(arguments: Namespace) -> int:
    """Run the chosen comparisons, print and save the results, and return the exit code.

    0 if the engines are equal and, with --kv-types, at least one has a KV type to compare with its reference.
    """
    prompts = _prompts(arguments)
    root = find_pack(arguments.model)
    manifest = Manifest.load(root)
    roles = _roles(arguments.role, manifest)
    found, lines = Found(), []
    if arguments.equality:
        encoded = _encoded(prompts, arguments, runtime=(arguments.runtimes or BOTH)[0])
        for role in roles:
            found.equality[role] = _compared(role, encoded, manifest=manifest, arguments=arguments)
        lines.append(equality_verdict(found.equality))
    if arguments.kv_types:
        lines += _compare_kv_types(found, prompts, roles, manifest=manifest, root=root, arguments=arguments)
    saves = bool(found.equality or found.kv_types) and saves_result(root, arguments.save)
    if saves:
        save_found(root, found)
    saved = f" (saved in {root}'s manifest)" if saves else ""
    for line in lines:
        print(line + (saved if line is lines[-1] else ""))
    if arguments.json:
        print_json(_json(found, roles, root=root, saved=saves))
    equal = all(equality.equal for equality in found.equality.values())
    return int(not equal or (arguments.kv_types and not found.kv_types))


def save_found(root: Path, found: Found) -> None:
    """Write each role's results into the manifest. Raises ManifestError if it cannot be written."""

    def change(value: dict[str, Any]) -> None:
        for role, equality in found.equality.items():
            value["models"][role]["equality"] = asdict(equality)
        for role, types in found.kv_types.items():
            entry = value["models"][role]
            entry["parity"] = {**entry.get("parity", {}), **kv_numbers(types)}

    save_result(root, change)


def _compared(role: str, prompts: Sequence[EncodedPrompt], *, manifest: Manifest, arguments: Namespace) -> Equality:
    """Compare the engines on one model and print the result."""
    engines = arguments.runtimes or BOTH
    setting = Setting(arguments.max_tokens, manifest.end_ids, trusted_noise=arguments.kv_type is None)
    comparison = compare_engines(partial(_opened, role, arguments), engines, prompts, setting, role=role)
    equality = equality_of(
        comparison.prompts,
        engines={name: engine_versions(name) for name in engines},
        noise=comparison.noise,
        prompts_digest=hashlib.sha256(json.dumps([prompt.tokens for prompt in prompts]).encode()).hexdigest(),
        max_tokens=arguments.max_tokens,
        kv_type=arguments.kv_type or "",
    )
    show_equality(role, manifest.models[role], equality, comparison)
    return equality


def _compare_kv_types(
    found: Found,
    prompts: Sequence[Prompt],
    roles: Sequence[str],
    *,
    manifest: Manifest,
    root: Path,
    arguments: Namespace,
) -> list[str]:
    """Add each engine's KV type results to `found`, print them, and return a line per engine and role without any."""
    lines = []
    for role in roles:
        types: dict[str, Sequence[KvQuality]] = {}
        for runtime in arguments.runtimes or installed_runtimes():
            refused = refused_types(runtime, manifest, root, role=role)
            if asked := types_to_compare(arguments.kv_type, refused):
                encoded = _encoded(prompts, arguments, runtime=runtime)
                types[runtime] = compare_types(
                    partial(_opened_for_scores, role, runtime, encoded, arguments),
                    asked,
                    encoded,
                    max_tokens=arguments.max_tokens,
                    ends=manifest.end_ids,
                    what=f"{role} on {runtime}",
                )
            else:
                reason = refused[arguments.kv_type or SMALLER_KV]
                lines.append(f"{role} on {runtime}: nothing to compare: {reason}")
        if types:
            found.kv_types[role] = types
            show_kv_types(role, quantization(manifest.models[role]), types)
    return lines


@contextmanager
def _opened_for_scores(
    role: str, runtime: str, prompts: Sequence[EncodedPrompt], arguments: Namespace, kv_type: str
) -> Iterator[LanguageModel]:
    """Open a model with a KV type and reserve memory for the scores."""
    with _pair(runtime, arguments, kv_type=kv_type if role == "target" else None) as pair:
        model = pair.target if role == "target" else pair.drafts.hold(needs=(f"kv:{kv_type}",))
        assert model is not None
        nbytes = scoring_nbytes(prompts, max_tokens=arguments.max_tokens, rows=model.card.rows)
        with pair.budget.reserve("scores", nbytes):
            yield model


@contextmanager
def _opened(role: str, arguments: Namespace, runtime: str) -> Iterator[LanguageModel]:
    with _pair(runtime, arguments, kv_type=arguments.kv_type) as pair:
        model = pair.target if role == "target" else pair.draft
        assert model is not None
        yield model


def _pair(runtime: str, arguments: Namespace, *, kv_type: str | None) -> Pair:
    memory, threads, options = arguments.memory, arguments.threads, LoadOptions(verify=arguments.verify)
    with leaving_at_once():
        return load(arguments.model, runtime=runtime, memory=memory, threads=threads, kv_type=kv_type, options=options)


def _prompts(arguments: Namespace) -> list[Prompt]:
    """Return the prompts, interleaved by family, so that --limit keeps some of each."""
    path = arguments.prompts
    try:
        prompts = bundled_prompts() if path is None else read_prompts(Path(path))
    except OSError as error:
        raise InputError(f"the prompts {path} cannot be read: {error.strerror or error}") from None
    return interleaved(prompts, name=lambda prompt: prompt.family)[: arguments.limit]


def _encoded(prompts: Sequence[Prompt], arguments: Namespace, *, runtime: str) -> list[EncodedPrompt]:
    """Encode each prompt's first turn with the pack's chat template, as a session does."""
    with leaving_at_once(), load(arguments.model, runtime=runtime, memory=arguments.memory) as pair:
        return [_encode(prompt, pair.tokenizer) for prompt in prompts]


def _encode(prompt: Prompt, tokenizer: Tokenizer) -> EncodedPrompt:
    text = tokenizer.render([*prompt.history, Message("user", prompt.turns[0])])
    return EncodedPrompt(prompt.turns[0], tuple(tokenizer.encode(text)))


def _roles(asked: str, manifest: Manifest) -> list[str]:
    if asked != "both" and asked not in manifest.models:
        raise CapabilityError(f"the pack {manifest.name!r} has no {asked} model: leave out --role")
    if asked != "target":
        manifest.check_same_tokens(f"eval --role {asked}")
    return [role for role in ("target", "draft") if role in manifest.models and asked in ("both", role)]


def _json(found: Found, roles: Sequence[str], *, root: Path, saved: bool) -> dict[str, object]:
    models: dict[str, dict[str, object]] = {role: {} for role in roles}
    for role, equality in found.equality.items():
        models[role] |= equality_json(equality)
    for role, types in found.kv_types.items():
        models[role] |= {"kv_types": kv_json(types)}
    return {"pack": str(root), "saved": saved, "models": models}
