"""Writes the folder that the native library opens: `native.json`, the models' files, the tokenizer.

The library rewrites no graph and prepares no weights; what it cannot run is refused here, by name.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import edgedecode
from edgedecode.adapters.adapter_memory import read_adapter
from edgedecode.decoding.model import LowRank
from edgedecode.engines.interface import ADAPTERS, ModelRequest, NativeRuntime
from edgedecode.engines.native_model import NativeModel
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import CapabilityError, InputError
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import DRAFT, HEAD, FileEntry, Generation
from edgedecode.pack.gate import check_pack
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.new_folder import check_place, new_folder
from edgedecode.pack.pack_lock import opening
from edgedecode.pack.pack_tokenizer import pack_tokenizer
from edgedecode.sessions.draft_models import preferred_drafters, role_of
from edgedecode.user_notices import notice

from ..stages import Stages
from .text_file import FILE, write_text

NAME = "native.json"
FORMAT, VERSION = "edgedecode-native", 1
_ENGINE = "onnx"
_MORE_NBYTES = 20_000_000
"""Besides the weights: graphs and the tokenizer."""


@dataclass(frozen=True, slots=True)
class NativeFolder:
    """The content of `native.json`. models: `target`, and `draft` or `head` where the pack has one."""

    name: str
    created_by: str
    vocabulary_size: int
    generation: Generation
    end_ids: tuple[int, ...]
    tokenizer: str
    turns: Mapping[str, Any]
    models: Mapping[str, NativeModel]
    files: Mapping[str, FileEntry]

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(self.value, indent=1, ensure_ascii=False) + "\n"

    @property
    def value(self) -> dict[str, Any]:
        """The file's content."""
        models = {role: replace(model, table=None) for role, model in self.models.items()}  # which asdict would copy
        value = {"format": FORMAT, "version": VERSION, **asdict(replace(self, models=models))}
        for model in value["models"].values():
            del model["table"]
        return value


def write_native_folder(
    pack: Path, out: Path, stages: Stages, *, kv_type: str = "float32", drafts: bool = True
) -> NativeFolder:
    """Write the folder `out`, which appears complete or not at all.

    kv_type: of the target's KV cache, and of the draft's where it has that type. drafts: False leaves the pack's draft
    models out. Raises CapabilityError for what the
    native library cannot run, ManifestError for a damaged pack, ExportError for a place that cannot be written.
    """
    if out.resolve().is_relative_to(pack.resolve()):
        raise InputError(f"--out {out} is inside the pack {pack}, which holds only its own files")
    with opening(pack):
        manifest = check_pack(pack)
        manifest.check_same_tokens("package --native")
        engine = find_runtime(_ENGINE)
        assert isinstance(engine, NativeRuntime)
        tokenizer = pack_tokenizer(manifest, pack, Budget())
        read = [manifest.weights_nbytes(role) for role in manifest.models]
        read += [(pack / manifest.located_adapter(name).file).stat().st_size for name in manifest.adapters]
        check_place(out, nbytes=2 * sum(read) + _MORE_NBYTES)
        with new_folder(out) as root:
            turns = write_text(tokenizer, root, name=f"{manifest.name}: the pack")
            size = tokenizer.size
            models = _write_models(
                engine, manifest, pack, root, stages=stages, size=size, kv_type=kv_type, drafts=drafts
            )
            if (licenses := pack / "licenses").is_dir():
                shutil.copytree(licenses, root / "licenses")
            with stages.stage("listing"):
                folder = NativeFolder(
                    name=manifest.name,
                    created_by=f"edgedecode {edgedecode.__version__}",
                    vocabulary_size=manifest.vocabulary_size,
                    generation=manifest.generation,
                    end_ids=tuple(sorted(manifest.end_ids)),
                    tokenizer=FILE,
                    turns=turns,
                    models=models,
                    files=_listed(root),
                )
                (root / NAME).write_text(folder.to_json(), encoding="utf-8")
    return folder


def _write_models(
    engine: NativeRuntime,
    manifest: Manifest,
    pack: Path,
    root: Path,
    *,
    stages: Stages,
    size: int,
    kv_type: str,
    drafts: bool,
) -> dict[str, NativeModel]:
    """Write target and draft; of the pack's draft models the one that answers would use by default."""
    loading = (ADAPTERS,) if manifest.adapters else ()
    wanted = preferred_drafters(manifest, runtime=_ENGINE, kv_type=kv_type, loading=loading, heads=True)
    draft = next(map(role_of, wanted), "") if drafts else ""
    request = ModelRequest(manifest.located("target"), pack, "target", size, Budget(), needs=(f"kv:{kv_type}",))
    if draft == HEAD:
        request = replace(request, taps=manifest.located(HEAD).taps)
    with stages.stage("target"):
        models = {"target": _written(engine, request, root, manifest)}
    if draft:
        name = HEAD if draft == HEAD else "draft"
        other = ModelRequest(manifest.located(draft), pack, name, size, Budget(), beside=models["target"])
        own = manifest if draft == DRAFT else None
        with stages.stage(name):
            try:
                models[name] = _written(engine, replace(other, needs=request.needs), root, own)
            except CapabilityError:
                if kv_type == "float32":
                    raise
                models[name] = _written(engine, other, root, own)
    return models


def _written(engine: NativeRuntime, request: ModelRequest, root: Path, manifest: Manifest | None) -> NativeModel:
    """Write a model with the pack's adapters for it; they stay behind where no graph of it takes them."""
    matrices = {} if manifest is None else _readable_adapters(manifest, request)
    if manifest is None or not matrices:
        return engine.native_model(request, root)
    try:
        model = engine.native_model(replace(request, needs=(*request.needs, ADAPTERS)), root, matrices)
    except CapabilityError as error:
        if (root / request.name).exists():
            raise
        notice(f"the adapters {', '.join(matrices)} stay behind: {error}")
        return engine.native_model(request, root)
    entries = manifest.adapters
    found = {name: replace(each, invocation=entries[name].invocation) for name, each in model.adapters.items()}
    return replace(model, adapters=found)


def _readable_adapters(manifest: Manifest, request: ModelRequest) -> dict[str, Sequence[LowRank]]:
    """Return the matrices of the pack's adapters for a model; one that cannot be read stays behind."""
    found = dict[str, Sequence[LowRank]]()
    for name in (name for name, each in manifest.adapters.items() if each.role == request.name):
        try:
            found[name] = read_adapter(manifest, request.root, name).matrices()
        except CapabilityError as error:
            notice(f"the adapter {name} stays behind: {error}")
    return found


def _listed(root: Path) -> dict[str, FileEntry]:
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {name: file_entry(root / name) for name in names}
