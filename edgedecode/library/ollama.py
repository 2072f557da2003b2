"""Reads the manifests of Ollama's store. The models are GGUF files, named by their digests.

Layout: manifest/ and server/ of ollama: manifests/HOST/NAMESPACE/MODEL/TAG is JSON that lists layers by media type and
digest, blobs/sha256-HEX is a layer.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgedecode.typed_json import described

from .stored import Store, StoredModel

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MEDIA = "application/vnd.ollama.image."
_USUAL_NAMESPACE, _USUAL_TAG = "library", "latest"
_REFUSED: Mapping[str, str] = {
    "tensor": "its weights are no GGUF file: pull another tag",
    "adapter": "it is a model with an adapter, which is not applied here: merge them, or use the model itself",
}
"""Layers of models that do not run here, or differently."""


@dataclass(frozen=True, slots=True)
class _Layer:
    mediaType: str  # noqa: N815  (the store's own name)
    digest: str


@dataclass(frozen=True, slots=True)
class _Manifest:
    layers: tuple[_Layer, ...]


def ollama_models(root: Path) -> list[StoredModel]:
    """Return the models of the store at `root`; those that cannot be used have a problem."""
    return [_model(root, path) for path in sorted(root.glob("manifests/*/*/*/[!.]*")) if path.is_file()]


def _model(root: Path, manifest: Path) -> StoredModel:
    host, namespace, model, tag = manifest.parts[-4:]
    short = model if namespace == _USUAL_NAMESPACE else f"{namespace}/{model}"
    full = short if namespace == _USUAL_NAMESPACE else f"{host}/{short}"
    untagged = (full, short) if tag == _USUAL_TAG else (short,)
    name, *aliases = dict.fromkeys((f"{full}:{tag}", f"{short}:{tag}", *untagged))
    try:
        blob, problem = _blob(root, manifest)
    except (OSError, ValueError) as error:
        blob, problem = manifest, f"its manifest {manifest} cannot be read ({error})"
    return StoredModel(name, blob, Store.OLLAMA, tuple(aliases), problem)


def _blob(root: Path, manifest: Path) -> tuple[Path, str]:
    """Return a model's GGUF file, and why it cannot be used."""
    layers = msgspec.json.decode(manifest.read_bytes(), type=described(_Manifest)).layers
    kinds = {layer.mediaType.removeprefix(_MEDIA): layer.digest for layer in layers}
    if refused := [reason for kind, reason in _REFUSED.items() if kind in kinds]:
        return manifest, refused[0]
    if (digest := _DIGEST.fullmatch(kinds.get("model", ""))) is None:
        return manifest, f"its manifest {manifest} names no model"
    blob = root / "blobs" / f"sha256-{digest[1]}"
    return blob, "" if blob.is_file() else f"its manifest names {blob}, which is not there: pull it again with Ollama"
