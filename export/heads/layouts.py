"""Reads heads in the layouts that publishers use: flat, speculators, NeMo and ModelOpt, MTP layers, block drafters, and
GGUF files.

Facts: SafeAILab's EAGLE (cnets.py), SGLang's SpecForge (llama3_eagle.py), vLLM's speculators (models/eagle3), llama.cpp
(src/models/eagle3.cpp). torch is needed for `.bin` files alone.
"""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from warnings import catch_warnings

import numpy as np

from edgedecode.adapters.safetensors_file import SafetensorsFile
from edgedecode.arrays import FloatArray, IntArray
from edgedecode.errors import ExportError
from edgedecode.gguf.architectures import HEAD_TAPS, MARKOV
from edgedecode.gguf.header import OUTPUT

from ..frameworks import reason_of, refused
from ..graph.checkpoint import weight_files
from .block_config import BlockConfig
from .gguf_head import read_gguf_head
from .head import CONTEXT_NORM, FACTORS, LAYER, MOST_IDS, Head, HeadShape, HeadTensor, checked_head, put
from .head_config import HeadConfig
from .mtp_layer import has_mtp, is_gated, placed_mtp

_PLACES = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
    **{f"fc_norm.{index}": f"fc_norm.{index}" for index in range(HEAD_TAPS)},
}
_BLOCK = {**LAYER, "hidden_norm": "attn_norm_2"}
_BLOCK_PLACES = {
    "fc": "fc",
    "norm": "output_norm",
    "hidden_norm": CONTEXT_NORM.removesuffix(".weight"),
    "lm_head": "output",
    "embed_tokens": "token_embd",
    **{f"markov_head.{name.removesuffix('.weight')}": name.removesuffix(".weight") for name in MARKOV},
}
_NUMBERED = re.compile(r"layers\.(\d+)\.(.+)")
_UNREAD = re.compile(r"confidence_head\..*|.*rotary_emb\.inv_freq")
_IGNORED = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq|(model\.)?(d2t|t2d)")
_PUBLISHED = {place: name for name, place in _PLACES.items()} | {
    f"blk.0.{place}": f"midlayer.{name}" for name, place in _BLOCK.items()
}
_LAYER = re.compile(r"midlayer\.|layers\.0\.")
_ROTATED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")
_BIN = "pytorch_model.bin"
_DTYPES = tuple(f"torch.{name}" for name in ("float32", "float16", "bfloat16", "int64", "int32", "bool"))


def read_head(source: Path) -> Head:
    """Read a head from a folder of Hugging Face's form, or from a GGUF file. Raises ExportError in one line."""
    if source.is_file() and source.suffix == ".gguf":
        return read_gguf_head(source)
    if not source.is_dir():
        raise ExportError(
            f"{source} is no folder and no GGUF file: give one of a drafting head, or `edgedecode pull` it"
        )
    config, tensors = HeadConfig(source), head_tensors(source)
    if has_mtp(tensors, config.layers):
        layer = placed_mtp(tensors, config.layers, source=source)
        return checked_head(config.mtp_shape(gated=is_gated(layer)), _with_divisors(config, layer), None)
    kind = config.kind.lower()
    is_block = "dflash" in kind or "dspark" in kind or any("markov" in name for name in tensors)
    if is_block and not config.is_speculators:
        return _block_drafter(source, config, tensors)
    _check_kind(config, tensors, source=source)
    placed: dict[str, HeadTensor] = {}
    for name, tensor in _placed(config, tensors):
        put(placed, name, tensor, source=source)
    placed = _with_divisors(config, placed)
    lm_head = placed.get(OUTPUT)
    shape = config.shape(
        rows=None if lm_head is None else (lm_head.shape or (0,))[0],
        norms={name: f"{_PLACES[name]}.weight" in placed for name in ("input_norm", "fc_norm.0")},
    )
    return checked_head(shape, placed, _ids(tensors, shape), published=_published)


def _block_drafter(source: Path, config: HeadConfig, tensors: Mapping[str, HeadTensor]) -> Head:
    """Return a DFlash or DSpark drafter. The scheduler chooses its rows, so its confidence head is left out."""
    says, placed, names = BlockConfig(source, config), dict[str, HeadTensor](), dict[str, str]()
    for name, tensor in tensors.items():
        if _UNREAD.fullmatch(name):
            continue
        module, _, kind = name.removeprefix("model.").rpartition(".")
        inside = _NUMBERED.fullmatch(module)
        part = _BLOCK.get(inside[2], inside[2]) if inside else ""
        place = f"blk.{inside[1]}.{part}.{kind}" if inside else f"{_BLOCK_PLACES.get(module, module)}.{kind}"
        if part in _ROTATED and says.neox:
            tensor = HeadTensor(tensor.shape, partial(_paired, tensor, config.head_size, config.rotated))
        put(placed, place, tensor, source=source)
        names[place] = name
    rank, output = placed.get(MARKOV[0]), placed.get(OUTPUT)
    shape = says.shape(
        rank=0 if rank is None else (rank.shape or (0,))[-1],
        rows=None if output is None else (output.shape or (0,))[0],
        layers=len({name.split(".")[1] for name in placed if name.startswith("blk.")}),
    )
    return checked_head(shape, _with_divisors(config, placed), None, published=lambda name: names.get(name, name))


def _published(name: str) -> str:
    """Return what the flat layout calls a tensor."""
    place, _, kind = name.rpartition(".")
    return f"{_PUBLISHED.get(place, place)}.{kind}"


def head_tensors(folder: Path) -> dict[str, HeadTensor]:
    """Return the tensors of a folder under their publisher's names. Raises ExportError."""
    if (folder / _BIN).is_file() and not any(folder.glob("*.safetensors")):
        return _unpickled(folder / _BIN)
    found: dict[str, HeadTensor] = {}
    with refused():
        for path in weight_files(folder):
            file = SafetensorsFile.open(path)
            found |= {name: _stored(file, name) for name in file.tensors}
    return found


def _stored(file: SafetensorsFile, name: str) -> HeadTensor:
    return HeadTensor(file.shape(name), partial(file.array, name), read_first=lambda rows: file.array(name, rows=rows))


def _unpickled(path: Path) -> dict[str, HeadTensor]:
    """Read a pickle that may hold tensors only."""
    try:
        import torch
    except ImportError:
        raise ExportError(f"{path.name} is read with torch, not installed: pip install 'edgedecode[export]'") from None
    try:
        with catch_warnings(action="ignore"):  # of pickles that torch did not write
            state = torch.load(path, map_location="cpu", weights_only=True)
        for value in state.values():
            if not (value.layout is torch.strided and value.device.type == "cpu" and str(value.dtype) in _DTYPES):
                raise ValueError(f"it has a tensor of {value.dtype}, {value.layout}")
        return {str(name): HeadTensor(tuple(value.shape), partial(_floats, value)) for name, value in state.items()}
    except Exception as error:  # torch's errors share no base class
        why = "" if isinstance(error, UnpicklingError) else f" ({reason_of(error)})"  # torch would advise to run it
        raise ExportError(
            f"{path} is damaged, or holds more than tensors{why}: a file of safetensors is needed"
        ) from None


def _floats(value: Any) -> FloatArray:  # noqa: ANN401  (torch's tensor)
    return np.ascontiguousarray(value.float().numpy(), np.float32)


def _check_kind(config: HeadConfig, tensors: Mapping[str, HeadTensor], *, source: Path) -> None:
    """Raise ExportError for heads of another kind, by name."""
    kind, names = config.kind.lower(), " ".join(tensors)
    fc = tensors.get("fc.weight") or tensors.get("model.fc.weight")
    wide = 2 * config.hidden
    others = {
        "a speculators' DSpark or DFlash": "dspark" in kind or "dflash" in kind,
        "a P-EAGLE": "peagle" in kind or "mask_hidden" in names,
        "an MTP": kind == "mtp",
        "a Medusa": "medusa" in names.lower(),
        "an EAGLE-1 or EAGLE-2": kind == "eagle"
        or (fc is not None and fc.shape[-1:] == (wide,) != (HEAD_TAPS * config.target_hidden,)),
    }
    for name, found in others.items():
        if found:
            raise ExportError(
                f"{source} holds {name} head: heads of EAGLE-3's form, MTP layers, and DSpark and DFlash in their own "
                f"layout are supported"
            )
    flat = (name.removeprefix("model.") for name in tensors)
    layers = {name for name in flat if re.match(r"midlayer\.|layers\.\d+\.", name)}
    if fc is None or not layers:
        raise ExportError(f"{source} holds no drafting head of EAGLE-3's form: it has no fc, or no layer")
    if more := [name for name in layers if not _LAYER.match(name)]:
        raise ExportError(f"{source} has more than one layer ({sorted(more)[0]}): heads have one")


def _placed(config: HeadConfig, tensors: Mapping[str, HeadTensor]) -> Iterator[tuple[str, HeadTensor]]:
    """Yield the tensors under their new names; query and key rows in the order of llama.cpp's rotation."""
    for name, tensor in tensors.items():
        if _IGNORED.fullmatch(name):
            continue
        module, _, kind = name.removeprefix("model.").rpartition(".")
        inside = _LAYER.match(module)
        inner = module[inside.end() :] if inside else ""
        place = f"blk.0.{_BLOCK.get(inner, inner)}" if inner else _PLACES.get(module, module)
        if inner and _BLOCK.get(inner) in _ROTATED:
            tensor = HeadTensor(tensor.shape, partial(_paired, tensor, config.head_size, config.rotated))
        yield f"{place}.{kind}", tensor


def _with_divisors(config: HeadConfig, tensors: Mapping[str, HeadTensor]) -> dict[str, HeadTensor]:
    divisors = config.divisors
    return {**tensors, **({} if divisors is None else {FACTORS: HeadTensor.of(divisors)})}


def _paired(tensor: HeadTensor, size: int, rotated: int) -> FloatArray:
    """Return rows of which each head's rotated values have their two halves as pairs, which llama.cpp rotates."""
    values = tensor.read()
    heads = np.array(values, np.float32).reshape(-1, size, *values.shape[1:])
    halves = heads[:, :rotated].reshape(len(heads), 2, rotated // 2, *values.shape[1:])
    heads[:, :rotated] = halves.swapaxes(1, 2).reshape(heads[:, :rotated].shape)
    return heads.reshape(values.shape)


def _ids(tensors: Mapping[str, HeadTensor], shape: HeadShape) -> IntArray | None:
    """Return each row's token id. d2t: what a row adds to its index, or zeros alone. t2d: which ids have a row."""
    d2t, t2d = (tensors.get(name) or tensors.get(f"model.{name}") for name in ("d2t", "t2d"))
    marked = np.flatnonzero(t2d.read()) if t2d is not None else ()
    if not shape.rows:
        return None  # the head has no lm_head, and is refused
    offsets = None if d2t is None else d2t.read().reshape(-1)
    if offsets is None or not offsets.any():
        if not len(marked) and shape.rows != shape.vocabulary:
            raise ExportError(
                f"the head has {shape.rows} rows of {shape.vocabulary} ids and no d2t that says which: "
                f"download it again"
            )
        return np.asarray(marked, np.int64) if len(marked) else None
    if len(offsets) != shape.rows:
        raise ExportError(f"d2t has {len(offsets)} ids for {shape.rows} rows of lm_head: download the head again")
    if not (np.abs(offsets) < MOST_IDS).all():  # also what is no number
        raise ExportError("d2t has values that lead to no token: the head is damaged; download it again")
    ids: IntArray = np.arange(shape.rows, dtype=np.int64) + offsets.astype(np.int64)
    if len(marked) and not np.array_equal(marked, np.sort(ids)):
        raise ExportError("d2t and t2d name different tokens: the head is damaged; download it again")
    return ids
