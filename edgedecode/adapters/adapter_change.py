"""Adds adapters to a pack and removes them.

The pack's check ignores adapter folders that the manifest does not list: a killed process leaves one, which adding an
adapter of the same name replaces.
"""

import re
import shutil
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path

from edgedecode.errors import CapabilityError, InputError
from edgedecode.gguf.adapter import targets
from edgedecode.gguf.contents import read_contents
from edgedecode.gguf.gguf_names import module_of
from edgedecode.gguf.header import Header, read_header
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import ADAPTERS, DRAFT_ADAPTER, AdapterEntry
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.pack_change import changed_pack, check_own

from .adapter_parts import Projections, check_invocation, graph_projections
from .gguf_adapter import (
    LORA_RANK,
    graph_products,
    lora_modules,
    lora_projections,
    read_gguf_adapter,
    read_gguf_matrices,
)
from .peft_folder import CONFIG, WEIGHTS, PeftAdapter, read_peft_adapter

NO_ADAPTER = "off"
"""The name that selects no adapter in a chat."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_GGUF = "adapter.gguf"


def add_adapter(root: Path, name: str, source: Path) -> AdapterEntry:
    """Copy an adapter into the pack under this name, which also determines the model it is for (`adapter_role`).

    source: a folder saved by PEFT, or a GGUF file. Raises InputError for a name that
    is invalid, taken, or for a draft model that the pack lacks, ManifestError for invalid files or a pack that cannot
    be changed, CapabilityError for an adapter that the pack's model cannot take, and OSError. The pack is then
    unchanged.
    """
    check_adapter_name(name)
    found = None if source.is_file() else read_peft_adapter(source / CONFIG, source / WEIGHTS)
    check_own(root, "change")
    with changed_pack(root) as change:
        manifest = change.manifest
        if name in manifest.adapters:
            raise InputError(f"the pack has an adapter {name!r} already: remove it first, or use another name")
        role = adapter_role(name, manifest.models)
        if found is None:
            entry = _fitting_file(source, manifest, root, role=role)
        else:
            check_fits(found, pack_projections(manifest, root, role=role), vocabulary_size=manifest.vocabulary_size)
        place = root / adapter_folder(name)
        _check_place(place, source, manifest)
        change.remove(path.relative_to(root).as_posix() for path in place.rglob("*") if not path.is_dir())  # leftovers
        files = [change.place(f"{adapter_folder(name)}/{each}") for each in ((CONFIG, WEIGHTS) if found else (_GGUF,))]
        if found is None:
            entry = replace(entry, file=files[0].relative_to(root).as_posix())
            shutil.copyfile(source, files[0])
        else:
            entry = copy_adapter(found, source, root, name)
        change.value["adapters"] = {**(change.value.get("adapters") or {}), name: asdict(entry)}
    return entry


def check_adapter_name(name: str) -> None:
    """Raise InputError for an invalid name of an adapter."""
    given = name.removeprefix(DRAFT_ADAPTER)
    if not _NAME.fullmatch(given) or given == NO_ADAPTER:
        raise InputError(
            f"{name!r} is not a valid adapter name: use letters, digits, dots and dashes, but not {NO_ADAPTER!r}"
        )


def adapter_role(name: str, roles: Collection[str]) -> str:
    """Return the role of the model that an adapter of this name is for. Raises InputError if it is not in `roles`."""
    role = "draft" if name.startswith(DRAFT_ADAPTER) else "target"
    if role not in roles:
        raise InputError(f"the adapter {name!r} is for a draft model, which the pack does not have: omit it")
    return role


def adapter_folder(name: str) -> str:
    """Return the folder of an adapter in a pack. Only those for draft models begin with an underscore."""
    return f"{ADAPTERS}/{name.replace(DRAFT_ADAPTER, '_draft-')}"


def copy_adapter(found: PeftAdapter, folder: Path, root: Path, name: str) -> AdapterEntry:
    """Copy the adapter `found`, which PEFT saved in `folder`, into the pack at `root`; return its entry."""
    names = {kind: f"{adapter_folder(name)}/{kind}" for kind in (CONFIG, WEIGHTS)}
    (root / adapter_folder(name)).mkdir(parents=True, exist_ok=True)
    for kind, listed in names.items():
        shutil.copyfile(folder / kind, root / listed)
    return AdapterEntry(
        names[WEIGHTS],
        role=adapter_role(name, ("target", "draft")),
        rank=found.rank,
        alpha=found.alpha,
        modules=found.modules,
        invocation=found.invocation,
        config=names[CONFIG],
    )


def remove_adapter(root: Path, name: str) -> AdapterEntry:
    """Remove an adapter from a pack. Raises InputError if there is none of this name, else as `add_adapter`."""
    check_own(root, "change")
    with changed_pack(root) as change:
        adapters = dict(change.manifest.adapters)
        if (entry := adapters.pop(name, None)) is None:
            known = ", ".join(adapters) or "none"
            raise InputError(f"the pack has no adapter {name!r}; it has: {known}")
        del change.value["adapters"][name]
        shared = {file for other in adapters.values() for file in (other.file, other.config)}
        change.remove(each for each in (entry.file, entry.config) if each and each not in shared)
    return entry


def _check_place(place: Path, source: Path, manifest: Manifest) -> None:
    """Raise InputError if replacing the folder `place` would remove the source, or files that the pack lists.

    The pack may be copied to a file system that ignores case, where "Formal" and "formal" are one folder.
    """
    begins = f"{ADAPTERS}/{place.name}/".lower()
    if taken := [each for each in manifest.files if each.lower().startswith(begins)]:
        raise InputError(f"the pack has the file {taken[0]}, which is in the adapter's place: use another name")
    if not place.exists():
        return
    for each in (source, source / CONFIG, source / WEIGHTS):
        real = each.resolve()
        if any(folder.exists() and folder.samefile(place) for folder in (real, *real.parents)):
            raise InputError(f"{each} is in {place}, which the pack's copy replaces: move it out of the pack first")


def check_fits(found: PeftAdapter, projections: Projections, *, vocabulary_size: int) -> None:
    """Raise CapabilityError or InputError for an adapter of another model or tokenizer.

    Raises ManifestError for values that are not finite.
    """
    check_invocation(found.invocation, vocabulary_size=vocabulary_size)
    projections.sort(found.matrices())
    found.check_values()


def gguf_projections(header: Header, *, name: str) -> Projections:
    """Return the products of our graph of the model `name` in a GGUF file.

    They take ranks up to `LORA_RANK`, and the hidden size: a larger rank would add nothing.
    """
    found = list(graph_products(header))
    return Projections(
        found,
        name=name,
        rank=min(LORA_RANK, header.hidden_size),
        modules=lora_modules(list(lora_projections(header))),
        kv_width=header.kv_heads * header.head_size,
        hint="the adapter is for another model",
        larger="give one of a smaller rank",
    )


def _fitting_file(path: Path, manifest: Manifest, root: Path, *, role: str) -> AdapterEntry:
    """Return the entry of a GGUF adapter, checked against the pack's model of this role."""
    model, size = manifest.located(role), manifest.vocabulary_size
    if not model.gguf:
        found = read_gguf_matrices(path, model, name=role)
        check_fits(found, pack_projections(manifest, root, role=role), vocabulary_size=size)
        return AdapterEntry(
            "", role=role, rank=found.rank, alpha=found.alpha, modules=found.modules, invocation=found.invocation
        )
    header, contents = read_header(root / model.gguf), read_contents(path, arrays=True)
    entry = read_gguf_adapter(contents, path, header, name=role, role=role, vocabulary_size=size)
    if all(module_of(target, header.architecture) for target in targets(contents, path)):  # else only llama.cpp runs it
        gguf_projections(header, name=f"the pack's {role}").check_rank(entry.rank)
    return entry


def pack_projections(manifest: Manifest, root: Path, *, role: str) -> Projections:
    """Return the products that take an adapter, of the pack's model of this role."""
    model, name = manifest.located(role), f"the pack's {role}"
    for graph in model.graphs.values():
        if "lora" in graph.capabilities:
            tensors = GraphFile.parse((root / graph.file).read_bytes()).initializers
            return Projections(
                list(graph_projections({name: tensor.dims for name, tensor in tensors.items()})),
                name=name,
                rank=graph.lora_rank,
                modules=graph.lora_modules,
                kv_width=model.kv_heads * model.head_size,
                hint="the adapter is for another model",
            )
    if model.gguf:
        return gguf_projections(read_header(root / model.gguf), name=name)
    raise CapabilityError(f"{name} takes no adapters: export it again with --graphs base,lora")
