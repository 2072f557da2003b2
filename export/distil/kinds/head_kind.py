"""Drafting heads, as a kind of what is trained."""

from collections.abc import Sequence
from pathlib import Path

from edgedecode.errors import ExportError
from edgedecode.pack.entries import HEAD
from edgedecode.pack.manifest import Manifest

from ...heads.head import LEAST_LAYERS, default_taps
from ...heads.pack_head import add_head
from ...stages import Stages
from ..plan import Needs
from ..target_weights import TargetWeights
from ..texts import Text
from .head_folder import write_head
from .head_network import DEPTH, HeadNetwork
from .kind import ROWS, Started, frequent_ids
from .start import earlier_head, new_head, sizes_of


class HeadKind:
    """A head for the pack at `root`. init: an earlier one's folder. Raises ExportError for a target of few layers."""

    drafter = HEAD

    def __init__(self, root: Path, init: Path | None) -> None:
        self._entry, self._init = Manifest.load(root).models["target"], init
        target = self._entry
        if target.layers < LEAST_LAYERS:
            raise ExportError(f"the target has {target.layers} layers: heads are for targets of {LEAST_LAYERS} or more")
        self.taps = default_taps(target.layers)

    def needs(self, target: TargetWeights) -> Needs:
        sizes = sizes_of(target, rows=min(ROWS, target.rows))
        return Needs(sizes, sizes.parameters, layers=DEPTH, width=len(self.taps) * sizes.hidden)

    def start(self, target: TargetWeights, texts: Sequence[Text]) -> Started:
        if self._init is not None:
            network, ids = earlier_head(self._init, target)
        else:
            ids = frequent_ids(texts, rows=min(ROWS, target.rows), vocabulary_size=target.rows)
            network = new_head(target, ids)
        return Started(network, ids, target.embedding)

    def write(self, folder: Path, started: Started) -> None:
        entry, network = self._entry, started.network
        assert isinstance(network, HeadNetwork)
        write_head(
            folder,
            network,
            started.ids,
            taps=self.taps,
            table=started.table,
            verifier=entry.source,
            license=entry.license,
            context=entry.context,
        )

    def is_alike(self, root: Path) -> bool:
        return Manifest.load(root).head is not None

    def add(self, root: Path, folder: Path, stages: Stages) -> None:
        add_head(root, folder, replace=True)
