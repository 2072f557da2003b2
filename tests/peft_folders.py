"""Write PEFT adapters with random matrices, and packs that list them."""

import json
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgedecode.adapters.adapter_change import adapter_folder, adapter_role
from edgedecode.adapters.peft_folder import CONFIG, WEIGHTS, read_peft_adapter
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.onnx_format.graph_file import GraphFile
from edgedecode.pack.entries import AdapterEntry
from edgedecode.pack.integrity import file_entry
from edgedecode.pack.manifest import MANIFEST_NAME, STACKS, Manifest

LAYER = "base_model.model.model.layers.{}.{}.lora_{}.weight"
PARENTS = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}


def safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a file of these tensors, as float32."""
    header, data = {}, b""
    for name, values in tensors.items():
        part = values.astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_peft(
    folder: Path,
    *,
    seed: int,
    rank: int = 4,
    size: float = 0.2,
    invocation: Sequence[int] = (),
    pack: Path = BUNDLED_PACK,
    role: str = "target",
    modules: Collection[str] | None = None,
) -> Path:
    """Write an adapter for all projections of a pack's model, or only for those named by `modules`."""
    rng, tensors = np.random.default_rng(seed), dict[str, np.ndarray]()
    for layer, module, inputs, outputs in projections(pack, role):
        if modules is not None and module not in modules:
            continue
        place = f"{PARENTS.get(module, 'mlp')}.{module}"
        tensors[LAYER.format(layer, place, "A")] = size * rng.standard_normal((rank, inputs))
        tensors[LAYER.format(layer, place, "B")] = size * rng.standard_normal((outputs, rank))
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear"}
    if invocation:
        config["alora_invocation_tokens"] = list(invocation)
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    (folder / WEIGHTS).write_bytes(safetensors(tensors))
    return folder


def projections(pack: Path, role: str) -> Iterator[tuple[int, str, int, int]]:
    """Yield the layer, name, inputs and outputs of each projection of a pack's model, as PEFT knows them."""
    model = Manifest.load(pack).models[role]
    tensors = GraphFile.parse((pack / model.graphs["lora"].file).read_bytes()).initializers
    kv = model.kv_heads * model.head_size
    for name, value in tensors.items():
        if not (name.startswith("lora.") and name.endswith(".a")):
            continue
        _, layer, module, _ = name.split(".")
        inputs, outputs = value.dims[0], tensors[f"{name[:-1]}b"].dims[1]
        parts = {"qkv_proj": (outputs - 2 * kv, kv, kv), "gate_up_proj": (outputs // 2,) * 2}.get(module, (outputs,))
        for part, width in zip(STACKS.get(module, (module,)), parts, strict=True):
            yield int(layer), part, inputs, width


def list_adapter(pack: Path, name: str, folder: Path) -> None:
    """Copy the adapter in a folder into a pack and list it in the manifest."""
    manifest = Manifest.load(pack)
    place = pack / adapter_folder(name)
    shutil.copytree(folder, place)
    found = read_peft_adapter(place / CONFIG, place / WEIGHTS)
    named = [f"{adapter_folder(name)}/{file}" for file in (CONFIG, WEIGHTS)]
    entry = AdapterEntry(
        named[1],
        role=adapter_role(name, ("target", "draft")),
        rank=found.rank,
        alpha=found.alpha,
        modules=found.modules,
        invocation=found.invocation,
        config=named[0],
    )
    files = manifest.files | {each: file_entry(pack / each) for each in named}
    changed = replace(manifest, files=files, adapters={**manifest.adapters, name: entry})
    (pack / MANIFEST_NAME).write_text(changed.to_json(), encoding="utf-8")
