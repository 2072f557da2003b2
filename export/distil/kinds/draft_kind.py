"""Draft models, as a kind of what is trained: a folder in the layout of Hugging Face, with the tokenizer."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgedecode.arrays import IntArray
from edgedecode.errors import ExportError
from edgedecode.pack.entries import DRAFT, TRIM
from edgedecode.pack.manifest import Manifest
from edgedecode.pack.token_map import write_token_ids
from edgedecode.sessions.draft_models import FULL

from ...frameworks import require_frameworks
from ...stages import Stages
from ..plan import Needs
from ..target_weights import TargetWeights
from ..texts import Text
from .draft_pack import check_unadapted
from .head_folder import WEIGHTS, save_weights
from .kind import IDS, ROWS, Started, frequent_ids
from .start import sizes_of

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class DraftKind:
    """A draft model for the pack at `root`. init: an earlier one's folder."""

    drafter = FULL
    taps: tuple[int, ...] = ()

    def __init__(self, root: Path, init: Path | None) -> None:
        require_frameworks("export")
        self._root, self._init, self._manifest = root, init, Manifest.load(root)
        check_unadapted(self._manifest)
        self._logits = torch.zeros(0)

    def needs(self, target: TargetWeights) -> Needs:
        from .draft_network import LAYERS

        sizes = sizes_of(target, rows=min(ROWS, target.rows))
        inner = (2 * sizes.heads + 2 * sizes.kv_heads) * sizes.head_size
        layer = sizes.hidden * (inner + 3 * sizes.mlp + 2)
        return Needs(sizes, LAYERS * layer + (sizes.rows + 1) * sizes.hidden, layers=LAYERS, width=0)

    def start(self, target: TargetWeights, texts: Sequence[Text]) -> Started:
        from .draft_network import new_draft

        ids = frequent_ids(texts, rows=min(ROWS, target.rows), vocabulary_size=target.rows)
        if self._init is not None:
            return self._earlier(self._init, target, ids)
        network = new_draft(target, ids, context=self._manifest.models["target"].context)
        self._logits = target.head
        return Started(network, ids, target.embedding)

    def write(self, folder: Path, started: Started) -> None:
        """Rows of logits that were not trained are the target's: a pack leaves them out."""
        from .draft_network import DraftNetwork

        network = started.network
        assert isinstance(network, DraftNetwork)
        tensors = {name: each for name, each in network.state_dict().items() if name != _HEAD}
        logits = self._logits.clone()
        logits[torch.from_numpy(started.ids)] = network.lm_head.weight.detach()
        save_weights(folder, {**tensors, _EMBEDDING: started.table, _HEAD: logits})
        network.config.save_pretrained(folder)
        write_token_ids(folder / IDS, started.ids)
        shutil.copyfile(self._root / self._manifest.tokenizer, folder / "tokenizer.json")
        if self._manifest.chat_template is not None:
            shutil.copyfile(self._root / self._manifest.chat_template, folder / "chat_template.jinja")

    def is_alike(self, root: Path) -> bool:
        return False  # their sizes differ

    def add(self, root: Path, folder: Path, stages: Stages) -> None:
        from .draft_pack import add_draft

        add_draft(root, folder, stages)
        self.drafter = TRIM if Manifest.load(root).models[DRAFT].trimmed else FULL

    def _earlier(self, folder: Path, target: TargetWeights, ids: IntArray) -> Started:
        """Return the model of a folder, written here or elsewhere: with its own ids if it names some."""
        from .draft_network import DraftNetwork, earlier_config

        config = earlier_config(folder)
        try:
            tensors = {name: each.float() for name, each in load_file(folder / WEIGHTS).items()}
            table = tensors.pop(_EMBEDDING)
            self._logits = tensors.pop(_HEAD, table)
            if (path := folder / IDS).exists():
                ids = np.fromfile(path, "<i4").astype(np.int64)
            if table.shape[0] != target.rows or not len(ids) or ids.min() < 0 or ids.max() >= target.rows:
                raise ValueError(f"it is for {table.shape[0]} ids, the target has {target.rows}")
            network = DraftNetwork(config, rows=len(ids))
            rows: Tensor = self._logits[torch.from_numpy(ids)]
            network.load_state_dict({**tensors, _HEAD: rows})
        except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
            raise ExportError(f"{folder} holds no draft model of this target: {str(error).splitlines()[0]}") from None
        return Started(network, ids, table)
