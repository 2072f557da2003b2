"""Tables of a manifest: what a user asks first, and all of its facts."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from edgedecode.memory.sizes import format_nbytes
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.weights_text import quantization
from edgedecode.text.printable import counted, shown
from edgedecode.typed_json import JsonValue

_DIGEST = 12
"""Characters shown of a digest; --json has all of them."""
_ITEMS = 4
"""Items shown of a list, such as a graph's inputs."""
_LONGEST = 2000
"""Characters shown of a text. Notes have hundreds; rich takes minutes to wrap 50,000 spaces."""
_LOSS = ("loss_kl", "loss_top1", "loss_positions")


def summary_table(manifest: Manifest, root: Path) -> Table:
    """Return what a user asks about a pack first, in at most eight lines."""
    models = manifest.models.items()
    licences = dict.fromkeys(entry.license or "not named" for _, entry in models)
    files = f"{format_nbytes(manifest.nbytes)} in {counted(len(manifest.files), 'file')}"
    notes = sum(len(entry.notes) for _, entry in models)
    return _table(
        {
            "pack": f"{manifest.name}, {files}, {root}",
            **{role: _model_line(manifest, role) for role, _ in models},
            **({"head": _head_line(manifest)} if manifest.head is not None else {}),
            **_loss(next(iter(manifest.models.values()))),
            "licence": ", ".join(licences),
            "chat template": "yes" if manifest.chat_template is not None else "none, a generic one is used",
            **({"adapters": ", ".join(manifest.adapters)} if manifest.adapters else {}),
            "more": f"--full shows all{', with ' + counted(notes, 'note') if notes else ''}",
        }
    )


def full_table(value: Mapping[str, JsonValue]) -> Table:
    """Return every fact of a manifest under its names there. value: the manifest as JSON."""
    return _table(dict(facts(value)))


def facts(value: Mapping[str, JsonValue], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each fact; an object without objects inside, such as a file, is one fact."""
    if path and not any(isinstance(each, dict) or _are_objects(each) for each in value.values()):
        if value:
            yield path, ", ".join(f"{name} {_text(each)}" for name, each in value.items() if each not in (None, "", []))
        return
    for name, each in value.items():
        place = f"{path}.{name}" if path else name
        if isinstance(each, dict):
            yield from facts(each, place)
        elif isinstance(each, list) and (_are_objects(each) or name in ("notes", "warnings")):
            for number, item in enumerate(each, start=1):
                yield from (
                    facts(item, f"{place}.{number}") if isinstance(item, dict) else [(f"{place}.{number}", _text(item))]
                )
        elif each not in (None, "", []):
            yield place, _text(each, digest=name.endswith("digest"))


def _are_objects(value: JsonValue) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _text(value: JsonValue, *, digest: bool = False) -> str:
    if isinstance(value, list):
        more = f", … ({len(value)} in all)" if len(value) > _ITEMS else ""
        return ", ".join(map(_text, value[:_ITEMS])) + more
    if isinstance(value, float):
        return f"{value:.4g}"
    is_digest = digest or (isinstance(value, str) and len(value) == 64 and value.isalnum())
    return str(value)[:_DIGEST] if is_digest else str(value)


def _model_line(manifest: Manifest, role: str) -> str:
    entry = manifest.models[role]
    weights = f"{format_nbytes(manifest.weights_nbytes(role))} ({quantization(entry)})"
    return f"{entry.parameters / 1e6:.1f}M parameters, {weights}, context of {entry.context} tokens"


def _head_line(manifest: Manifest) -> str:
    head = manifest.head
    assert head is not None
    size = format_nbytes(manifest.files[head.gguf].nbytes)
    return f"{head.parameters / 1e6:.1f}M parameters, {size} ({head.source}); licence: {head.license}"


def _loss(entry: ModelEntry) -> dict[str, str]:
    if not all(name in entry.parity for name in _LOSS):
        return {}
    kl, same, positions = (entry.parity[name] for name in _LOSS)
    text = f"KL {kl:.2g} from the original weights, same top token {same:.1%}, over {positions:.0f} positions"
    return {"loss": text}


def _table(rows: Mapping[str, str]) -> Table:
    """Return rows of untrusted texts, without markup or control characters, and cut to a length rich can wrap."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for row in rows.items():
        table.add_row(*(Text(shown(cell[:_LONGEST])) for cell in row))
    return table
