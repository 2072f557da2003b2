"""One comparison of two engines from its arguments to its table and its last line."""

from __future__ import annotations

import hashlib
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from edgedecode import InputError, Message, load
from edgedecode.decoding.model import LanguageModel
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.pack.engine_equality import EXPECTED_BEYOND, Equality
from edgedecode.pack.gate import is_downloaded
from edgedecode.pack.hub import BUNDLED_PACK, find_pack
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest, ModelEntry
from edgedecode.pack.pack_lock import changing, replace_manifest
from edgedecode.text.printable import shown
from edgedecode.text.prompts import Prompt, read_prompts
from edgedecode.text.tokenizer import Tokenizer

from ..bundled_prompts import bundled_prompts
from ..interrupts import leaving_at_once
from ..machine import engine_versions
from ..terminal import progress, table_console
from .tally import equality_of, noisier
from .two_engines import Comparison, EncodedPrompt, Opener, Setting, compare_engines

__all__ = ["run_equality", "save_equality"]

EQUAL, DIFFERENT = 0, 1


def run_equality(arguments: Namespace) -> int:
    """Compare, show, save, and return the exit code: 0 where the engines say the same."""
    prompts = _prompts(arguments)
    root = find_pack(arguments.model)
    manifest = Manifest.load(root)
    roles = _roles(arguments.role, manifest)
    encoded = _encoded(prompts, arguments)
    found = {role: _compared(role, encoded, manifest=manifest, arguments=arguments) for role in roles}
    saves = _saves_by_itself(root) if arguments.save is None else arguments.save
    if saves:
        save_equality(root, found)
    equal = all(equality.equal for equality in found.values())
    print(_verdict(found) + (f" (kept in {root}'s manifest)" if saves else ""))
    if arguments.json:
        print(json.dumps(_json(found, root=root, saved=saves)))
    return EQUAL if equal else DIFFERENT


def _saves_by_itself(root: Path) -> bool:
    """Tell whether a pack's manifest is the user's own to write: not the package's, not another's from the hub."""
    ours = root.resolve() == BUNDLED_PACK.resolve() or is_downloaded(root)
    return not ours and os.access(root, os.W_OK) and os.access(root / MANIFEST_NAME, os.W_OK)


def save_equality(root: Path, found: Mapping[str, Equality]) -> None:
    """Write what was found of each role into the manifest. Raises ManifestError where that cannot be written."""
    path = root / MANIFEST_NAME
    try:
        with changing(root):
            value = json.loads(path.read_text(encoding="utf-8"))  # keys that only a newer version knows stay
            for role, equality in found.items():
                value["models"][role]["equality"] = asdict(equality)
            replace_manifest(root, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ManifestError(
            f"the result cannot be kept in {path} ({error.strerror or error}): give --no-save"
        ) from None


def _compared(role: str, prompts: Sequence[EncodedPrompt], *, manifest: Manifest, arguments: Namespace) -> Equality:
    """Compare the engines on one model and show what was found."""
    setting = Setting(
        max_tokens=arguments.max_tokens,
        ends=manifest.end_ids,
        noise_positions=arguments.noise_positions,
        trusted_noise=arguments.kv_type is None,
    )
    comparison = compare_engines(
        _opener(role, arguments),
        arguments.runtimes,
        prompts,
        setting,
        progress=lambda name, total: progress(f"{role}: {name}", total),
    )
    equality = equality_of(
        comparison.prompts,
        engines={name: engine_versions(name) for name in arguments.runtimes},
        noise=comparison.noise,
        prompts_digest=_digest(prompts),
        max_tokens=arguments.max_tokens,
        kv_type=arguments.kv_type or "",
    )
    show_equality(role, manifest.models[role], equality, comparison)
    return equality


def _opener(role: str, arguments: Namespace) -> Opener:
    @contextmanager
    def opened(runtime: str) -> Iterator[LanguageModel]:
        with leaving_at_once():
            pair = load(
                arguments.model,
                memory=arguments.memory,
                runtime=runtime,
                threads=arguments.threads,
                verify=arguments.verify,
                kv_type=arguments.kv_type,
            )
        with pair:
            model = pair.target if role == "target" else pair.draft
            assert model is not None
            yield model

    return opened


def _prompts(arguments: Namespace) -> list[Prompt]:
    """Return the prompts, families in turn, so that the first few hold some of each."""
    prompts = bundled_prompts() if arguments.prompts is None else _read(Path(arguments.prompts))
    families: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        families.setdefault(prompt.family, []).append(prompt)
    deepest = max(len(members) for members in families.values())
    mixed = [members[index] for index in range(deepest) for members in families.values() if index < len(members)]
    return mixed[: arguments.limit]


def _read(path: Path) -> list[Prompt]:
    try:
        return read_prompts(path)
    except OSError as error:
        raise InputError(f"the prompts {path} cannot be read: {error.strerror or error}") from None


def _encoded(prompts: Sequence[Prompt], arguments: Namespace) -> list[EncodedPrompt]:
    """Turn each prompt's first turn into tokens, through the pack's template, as a session would."""
    with leaving_at_once(), load(arguments.model, runtime=arguments.runtimes[0], memory=arguments.memory) as pair:
        return [_encode(prompt, pair.tokenizer) for prompt in prompts]


def _encode(prompt: Prompt, tokenizer: Tokenizer) -> EncodedPrompt:
    messages = [*prompt.history, Message("user", prompt.turns[0])]
    text = tokenizer.chat_template.render(messages, add_generation_prompt=True)
    return EncodedPrompt(prompt.turns[0], tuple(tokenizer.encode(text)))


def _roles(asked: str, manifest: Manifest) -> list[str]:
    if asked != "both" and asked not in manifest.models:
        raise CapabilityError(f"the pack {manifest.name!r} has no {asked} model: leave --role out")
    return [role for role in ("target", "draft") if role in manifest.models and asked in ("both", role)]


def _digest(prompts: Sequence[EncodedPrompt]) -> str:
    return hashlib.sha256(json.dumps([prompt.tokens for prompt in prompts]).encode()).hexdigest()


def _verdict(found: Mapping[str, Equality]) -> str:
    """Say in one line what the exit code says."""
    different = [f"{role} on {_excess(equality)}" for role, equality in found.items() if not equality.equal]
    first, second = next(iter(found.values())).engines
    if different:
        return f"NOT EQUAL: {first} and {second} differ by more than kernel noise: {', '.join(different)}"
    few = sum(equality.beyond_tokens for equality in found.values())
    but = f", but for {few} near ties, no more than a percentile leaves out" if few else ""
    return f"EQUAL: every token is the arg-max in both {first} and {second}, or within kernel noise{but}"


def _excess(equality: Equality) -> str:
    """Say what makes two engines different: prompts, and tokens that are no near tie or too many beyond the noise."""
    tokens = f"{equality.untied} tokens are not near ties" if equality.untied else f"tokens: {equality.beyond_rate}"
    return f"{equality.beyond} of {equality.prompts} prompts ({tokens})"


def _json(found: Mapping[str, Equality], *, root: Path, saved: bool) -> dict[str, object]:
    models = {
        role: {**asdict(equality), "equal": equality.equal, **_bounds(equality)} for role, equality in found.items()
    }
    return {"pack": str(root), "saved": saved, "models": models}


def _bounds(equality: Equality) -> dict[str, object]:
    """Return the rates' bounds."""
    rates = {"divergent": equality.divergent_rate, "beyond_tokens": equality.beyond_rate}
    return {f"{name}_bounds": [rate.low, rate.high] for name, rate in rates.items()}


NAMED = 10
"""Prompts beyond the noise that are named."""
_NAME_LENGTH = 60


def show_equality(role: str, entry: ModelEntry, equality: Equality, comparison: Comparison) -> None:
    """Print what was found of one model: conditions, counts, and the prompts whose gap exceeds the noise."""
    from rich.table import Table

    console = table_console()
    engines = ", ".join(f"{name} ({versions})" for name, versions in equality.engines.items())
    console.print(shown(f"{role}, {quantization(entry)}: {engines}"), highlight=False, markup=False)
    table = Table(box=None, pad_edge=False)
    for title in ("prompts", "arg-max in both", "divergent prompts", "largest gap"):
        table.add_column(title, justify="right")
    for name in equality.noise:
        table.add_column(f"noise of {name}", justify="right")
    table.add_column("tokens beyond noise", justify="right")
    table.add_row(
        str(equality.prompts),
        f"{equality.hits} of {equality.tokens} tokens",
        str(equality.divergent),
        _logits(equality.largest_gap),
        *(_logits(value) for value in equality.noise.values()),
        str(equality.beyond_tokens),
    )
    console.print(table)
    console.print(f"divergent prompts: {equality.divergent_rate}", highlight=False)
    console.print(
        f"tokens beyond noise: {equality.beyond_rate}; {EXPECTED_BEYOND:.1%} may be, as the noise is a percentile",
        highlight=False,
    )
    noise = noisier(comparison.noise)
    beyond = [prompt for prompt in comparison.prompts if prompt.beyond(noise)]
    for prompt in beyond[:NAMED]:
        text = " ".join(prompt.name.split())
        short = text if len(text) <= _NAME_LENGTH else text[:_NAME_LENGTH] + "…"
        gaps = ", ".join(f"{score.largest_gap:.3g} in {name}" for name, score in prompt.scores.items())
        console.print(f"beyond the noise: {short!r}: {gaps}", highlight=False, markup=False)
    if len(beyond) > NAMED:
        console.print(f"and {len(beyond) - NAMED} more", highlight=False)
    for note in entry.notes:  # they say where an engine runs other weights, or a shorter context
        console.print(f"note of the export: {shown(note)}", highlight=False, markup=False)
    console.print()


def quantization(entry: ModelEntry) -> str:
    """Say how the weights are stored."""
    body = f"int{entry.bits} blocks of {entry.block_size}" if entry.bits < 16 else f"float{entry.bits}"
    return f"{body}, head {'int' if entry.head_bits < 16 else 'float'}{entry.head_bits}"


def _logits(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}"
