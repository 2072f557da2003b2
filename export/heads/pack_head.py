"""Adds a drafting head to a pack, and removes it."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from edgedecode.arrays import IntArray
from edgedecode.errors import ExportError, InputError
from edgedecode.gguf.architectures import BY_NAME, HEAD, HEAD_TAPS
from edgedecode.gguf.gguf_names import gguf_name
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import HEAD_NAMES
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.pack.pack_change import changed_pack, check_own
from edgedecode.pack.pack_tokenizer import pack_tokenizer

from ..trim.id_ranking import always_kept, rank_ids
from .assistant import is_assistant, read_assistant
from .gguf_head import write_gguf_head
from .head import LEAST_LAYERS, Head, HeadShape, default_taps
from .head_entry import head_entry
from .layouts import read_head
from .own_table import without_table
from .target_rows import with_output

TIED_ROWS = 32768
"""Ids that a head proposes at most whose logits are its target's: an MTP layer, a block drafter or an assistant. By
arithmetic, a step of Qwen3.5-0.8B's MTP layer takes 0.37 of its target's with the logits of 248,320 ids, and 0.07 with
those of these."""


@dataclass(frozen=True, slots=True)
class AddedHead:
    """A pack's new head. notes: what the user must know, a sentence each. doubtful: it may be another target's."""

    entry: ModelEntry
    notes: tuple[str, ...]
    doubtful: bool


def add_head(root: Path, source: Path, *, bits: int | None = None, replace: bool = False) -> AddedHead:
    """Read a head and put it into the pack, quantized. bits: of its matrices; None: those of the target's layers.

    replace: in the place of one that the pack may have. Raises ExportError for what is no head, or one for another
    target, InputError if the pack has a head, ManifestError for a pack that cannot be changed, and OSError. The pack is
    then unchanged.
    """
    check_own(root, "change")
    assistant = read_assistant(source) if is_assistant(source) else None
    head = read_head(source) if assistant is None else None
    with changed_pack(root) as change:
        manifest = change.manifest
        target = manifest.models["target"]
        if manifest.head is not None and not replace:
            raise InputError(f"the pack has a head, {manifest.head.source}: remove it first (`edgedecode head remove`)")
        located = manifest.located("target")
        bits = bits or (target.bits if target.bits in (4, 8) else 8)
        name = next(each for each in HEAD_NAMES if each not in manifest.files)
        if assistant is not None:
            ids = _frequent_ids(manifest, root) if target.rows > TIED_ROWS else None
            with change.place(name).open("wb") as file:
                entry = assistant.write(file, target, path=root / located.gguf, ids=ids, bits=bits, name=name)
            change.value["head"] = asdict(entry)
            change.remove(each for each in HEAD_NAMES if each != name)
            return AddedHead(entry, (), doubtful=False)
        assert head is not None
        taps = _fitting(head, target, vocabulary_size=manifest.vocabulary_size)
        if head.shape.kind != HEAD.name and head.shape.tied and head.ids is None and target.rows > TIED_ROWS:
            head = head.of_ids(_frequent_ids(manifest, root))
        head, note, is_other = without_table(with_output(head, located, root), located, root)
        entry = head_entry(head, file=name, bits=bits, taps=taps, source=source.resolve().name)
        with change.place(name).open("wb") as file:
            write_gguf_head(file, head, bits=bits, taps=taps)
        change.value["head"] = asdict(entry)
        change.remove(each for each in HEAD_NAMES if each != name)
    named = _other_target(head, manifest)
    return AddedHead(entry, tuple(filter(None, (note, named))), is_other or bool(named))


def remove_head(root: Path) -> ModelEntry:
    """Remove the pack's head. Raises InputError if it has none, else as `add_head`."""
    check_own(root, "change")
    with changed_pack(root) as change:
        entry = change.manifest.head
        if entry is None:
            raise InputError("the pack has no head")
        del change.value["head"]
        change.remove(HEAD_NAMES)
    return entry


def _fitting(head: Head, target: ModelEntry, *, vocabulary_size: int) -> tuple[int, ...]:
    """Return the target's layers whose inputs the head reads. Raises ExportError for a head of another target."""
    shape = head.shape
    if target.layers < LEAST_LAYERS and shape.kind == HEAD.name:
        raise ExportError(f"the target has {target.layers} layers: heads are for targets of {LEAST_LAYERS} or more")
    if shape.target_hidden != target.hidden_size or shape.hidden != target.hidden_size:
        found = shape.target_hidden if shape.target_hidden != target.hidden_size else shape.hidden
        raise ExportError(
            f"the head is for hidden states of {found} values, the target's have {target.hidden_size}: it is for "
            f"another target"
        )
    if shape.vocabulary not in (0, target.rows, vocabulary_size):
        raise ExportError(
            f"the head is for {shape.vocabulary} ids, the target has {target.rows}: it is for another target"
        )
    if head.ids is not None and (beyond := int(head.ids.max())) >= vocabulary_size:
        raise ExportError(f"d2t names the token {beyond}, the target's tokenizer has {vocabulary_size}")
    if shape.is_mtp:
        return (target.layers,)
    if shape.is_block:
        return _fitting_block(shape, target)
    taps = shape.taps or default_taps(target.layers)
    if len(taps) != HEAD_TAPS or len({*taps} & {*range(1, target.layers)}) < HEAD_TAPS:
        raise ExportError(
            f"the head reads the inputs of layers {list(taps)}, the target has layers 1 to {target.layers - 1} of "
            f"which {HEAD_TAPS} are read: it is for another target"
        )
    return taps


def _fitting_block(shape: HeadShape, target: ModelEntry) -> tuple[int, ...]:
    """Return the layers whose inputs are the outputs that a block drafter reads. Raises as `_fitting`."""
    if shape.target_layers not in (0, target.layers) or shape.taps[-1] > target.layers:
        outputs = [layer - 1 for layer in shape.taps]
        stated = f" of {shape.target_layers}" * bool(shape.target_layers)
        raise ExportError(
            f"the head reads the outputs of layers {outputs}{stated}, the target has layers 0 to {target.layers - 1}: "
            f"it is for another target"
        )
    if shape.taps[-1] == target.layers:
        raise ExportError(f"the head reads the output of the last layer, {target.layers - 1}, which is not supported")
    if (known := BY_NAME.get(gguf_name(target.architecture) or "")) is not None and (
        known.scaled_embedding or known.logits_cap
    ):
        raise ExportError("the head is for a target that scales its embeddings (Gemma), which is not supported")
    return shape.taps


def _frequent_ids(manifest: Manifest, root: Path) -> IntArray:
    """Return the ids of `TIED_ROWS`: those a trim keeps without texts, which BPE orders by frequency."""
    tokenizer = pack_tokenizer(manifest, root, Budget())
    always = always_kept(tokenizer, manifest.generation)
    ranking = rank_ids([], always=always, vocabulary_size=tokenizer.size)
    return np.sort(ranking.order[: max(TIED_ROWS, ranking.always)])


def _other_target(head: Head, manifest: Manifest) -> str:
    """Return a note if the head names another target than the pack's."""
    named, known = head.shape.verifier.rpartition("/")[2], manifest.models["target"].source.rpartition("/")[2]
    if not named or named.lower() in known.lower() or known.lower() in named.lower():
        return ""
    return f"it was trained for {named}, the pack's target is {known}"
