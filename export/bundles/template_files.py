"""Copies the files of `templates/` and of `device/` into a bundle, and fills in their few names."""

import re
import shlex
from pathlib import Path

from edgedecode.pack.chips import CHIPS
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.messages import Message

from .bundle import Bundle
from .request import PackageRequest, Target

_TEMPLATES = Path(__file__).parent / "templates"
_DEVICE = Path(__file__).parent / "device"
_USER = "{user}"
_TEXT = {".sh", ".ps1", ".kt", ".kts", ".xml", ".md", ".json", ".properties", ".txt"}


def copy_templates(root: Path, request: PackageRequest, bundle: Bundle) -> None:
    """Copy what the bundle's target gets; `@NAME@` is replaced in texts."""
    values = _values(root, request, bundle)
    for name, path in _sources(request.target):
        data = path.read_bytes()
        if path.suffix in _TEXT and path.parent != _DEVICE:
            text = data.decode()
            for word, value in values.items():
                text = text.replace(f"@{word}@", value)
            data = text.encode()
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        if path.suffix == ".sh":
            place.chmod(0o755)


def _sources(target: Target) -> list[tuple[str, Path]]:
    """Return the templates that a target gets, and the self-test's program, by the name in the bundle."""
    found: list[tuple[str, Path]] = []
    for folder in target.templates:
        base, place = _TEMPLATES / folder, f"{folder}/" if folder == "gradle" else ""
        paths = sorted(path for path in base.rglob("*") if path.is_file())
        found += [(f"{place}{path.relative_to(base).as_posix()}", path) for path in paths]
    if target.provider:
        found += [(f"selftest/{path.name}", path) for path in sorted(_DEVICE.glob("*.py"))]
    return found


def _values(root: Path, request: PackageRequest, bundle: Bundle) -> dict[str, str]:
    socs = {soc for model in bundle.models.values() for graph in model.graphs for soc in graph.socs}
    dependencies = "\n".join(f'    implementation("{each}")' for each in bundle.runtime)
    cases = [f'  {name}) set -- {shlex.join(words)} "$@" ;;' for name, words in bundle.commands.items()]
    return {
        "APP_ID": request.package,
        "PROMPT": _prompt_frame(root, bundle),
        "NAME": re.sub(r"[^A-Za-z0-9._-]", "-", bundle.name).lstrip(".-") or "pack",  # it is part of shell commands
        "ABI": bundle.abi,
        "MIN_SDK": str(bundle.min_sdk),
        "SOC_MODELS": " ".join(sorted({model for soc in socs for model in CHIPS[soc].models})),
        "RUNTIME": dependencies if bundle.min_sdk else " ".join(f'"{each}"' for each in bundle.runtime),
        "COMMANDS": "\n".join(cases),
    }


def _prompt_frame(root: Path, bundle: Bundle) -> str:
    """Return a first turn as the chat template renders it, with `{user}` for the user's text."""
    if bundle.chat_template is None:
        return _USER
    generation = bundle.generation
    text = (root / bundle.chat_template).read_text(encoding="utf-8")
    template = ChatTemplate(text, bos_token=generation.bos_token, eos_token=generation.eos_token)
    return template.render([Message("user", _USER)], add_generation_prompt=True)
