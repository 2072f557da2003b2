"""Trims a pack's draft: checks first, then measures sizes, and changes the pack last."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from edgedecode import Pair, load
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import ExportError, InputError
from edgedecode.library.find import find_pack
from edgedecode.memory.budget import Budget
from edgedecode.pack.entries import DRAFT, TRIM, TRIM_NAMES
from edgedecode.pack.manifest import Graph, Manifest, ModelEntry, TrimmedDraft
from edgedecode.pack.new_folder import check_room
from edgedecode.pack.pack_change import changed_pack, check_own
from edgedecode.pack.token_map import write_token_ids

from ..frameworks import require_frameworks
from ..stages import Stages
from .draft_sizes import SizeRow, Sizes, size_row
from .forced_acceptance import measure_acceptance
from .id_ranking import Ranking, always_kept, rank_ids, sweep_sizes
from .texts import Texts, answer_prompts, chosen_prompts, split_texts
from .timing import REPETITIONS, time_drafts, time_target

ENGINE = "onnx"
"""The engine that runs graphs."""
_GRAPHS_ONLY = (
    "only graphs can be trimmed, not GGUF files: make a pack with `edgedecode export --target MODEL --draft MODEL`"
)
_GRAPH_NBYTES = 1 << 20
"""Estimated size of a graph without the rows it keeps."""


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """The pack, the size, and the prompts to measure on."""

    pack: str | Path
    size: int | None = None
    """None: the best of several."""
    calibrate: Path | None = None
    """A file with prompts; None: the bundled ones."""
    prompts: int | None = None
    """The most prompts that are answered; None: all."""
    max_tokens: int = 128
    """Length of an answer."""
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class TrimResult:
    """The outcome. chosen: the size that the pack now has; None: the pack was not changed."""

    root: Path
    sizes: Sizes
    chosen: SizeRow | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    """Added files: name → bytes."""


def trim_pack(request: TrimRequest, stages: Stages) -> TrimResult:
    """Measure smaller vocabularies of the pack's draft; add the requested one, or the best one if it is faster.

    Raises ExportError, InputError or ManifestError. The pack is then unchanged, as after an interrupt.
    """
    root, manifest = _opened(request.pack)
    entry = manifest.models[DRAFT]
    if not entry.graphs:
        raise ExportError(f"the pack's draft has no ONNX graph: {_GRAPHS_ONLY}")
    require_frameworks("trim", extra="import")
    prompts = chosen_prompts(request.calibrate, most=request.prompts)
    with load(root, runtime=ENGINE, threads=request.threads) as pair:
        size, always = pair.tokenizer.size, always_kept(pair.tokenizer, manifest.generation)
        sizes = sweep_sizes(vocabulary_size=size, always=len(always)) if request.size is None else (request.size,)
        unranked = rank_ids([], always=always, vocabulary_size=size)
        row_nbytes = entry.hidden_size * entry.head_bits // 8 + 4 * entry.hidden_size // (entry.block_size or 32) + 4
        rows = max(len(unranked.vocabulary(each)) for each in sizes)
        check_room(root, rows * row_nbytes + _GRAPH_NBYTES, remedy="give a smaller --size")
        measure = _Measure(pair, root, stages, request.threads)
        measure.check(unranked)
        with stages.stage("answers", len(prompts)) as advance:
            answers = answer_prompts(pair, prompts, max_tokens=request.max_tokens, advance=advance)
        texts = split_texts([[text.cut(measure.context) for text in each] for each in answers])
        ranking = rank_ids([text.answer for text in texts.counted], always=always, vocabulary_size=size)
        if request.size is None:
            sizes = ranking.with_covering(sizes, [token for text in texts.choosing for token in text.answer])
        found = measure.sizes(ranking, sizes, texts)
    chosen = found.best if request.size is None else found.row(request.size)
    if chosen is None:
        return TrimResult(root, found)
    with stages.stage("graph"):
        speeds = (chosen.coverage, chosen.speed_up, found.whole.speed_up)
        return TrimResult(root, found, chosen, save_trimmed(root, ranking.vocabulary(chosen.size), speeds))


def save_trimmed(
    root: Path, vocabulary: TrimmedVocabulary, measured: tuple[float, float, float] | None = None
) -> dict[str, int]:
    """Replace the pack's trimmed draft by one with this vocabulary; return the sizes of its files.

    measured: its coverage and speed-up, and the full draft's speed-up. Raises ExportError, ManifestError or OSError,
    and leaves the pack as it was.
    """
    from .trimmed_graph import write_trimmed

    with changed_pack(root) as change:
        entry, base = change.manifest.located(DRAFT), _full_graph(change.manifest.models[DRAFT])
        folder = PurePosixPath(base.file).parent
        file, ids = (
            next(str(folder / name) for name in TRIM_NAMES[kind] if str(folder / name) not in change.manifest.files)
            for kind in ("graph", "ids")
        )
        graph = write_trimmed(base, entry, root, out=change.place(file), ids=vocabulary.ids)
        write_token_ids(change.place(ids), vocabulary.ids)
        trimmed = TrimmedDraft(replace(graph, file=file, token_ids=ids), ENGINE, *(measured or ()))
        change.value["models"][DRAFT]["trimmed"] = asdict(trimmed)
        change.remove(name for name in _files(change.manifest) if name not in (file, ids))
    return {name: Manifest.load(root).files[name].nbytes for name in (file, ids)}


def remove_trimmed(pack: str | Path) -> list[str]:
    """Remove the pack's trimmed draft; return the names of its files. Raises InputError if it has none."""
    root, manifest = _opened(pack)
    gone = [name for name in _files(manifest) if name in manifest.files or (root / name).exists()]  # a crash left it
    if not gone:
        raise InputError(f"the pack {root} has no trimmed draft to remove")
    with changed_pack(root) as change:
        change.value["models"][DRAFT].pop("trimmed", None)
        change.remove(_files(manifest))
    return gone


def _opened(pack: str | Path) -> tuple[Path, Manifest]:
    """Find the pack and run the checks that do not need its models."""
    root = find_pack(pack)
    manifest = Manifest.load(root)
    if DRAFT not in manifest.models:
        made = "export it with --draft" if manifest.models["target"].graphs else _GRAPHS_ONLY
        raise ExportError(f"{pack} has no draft model to trim: {made}")
    manifest.check_same_tokens("trim")
    check_own(root, "trim")
    return root, manifest


def _full_graph(entry: ModelEntry) -> Graph:
    return entry.graphs.get("base") or next(iter(entry.graphs.values()))


def _files(manifest: Manifest) -> list[str]:
    """Return the files of a trim that the pack may have, listed or left by a crash."""
    entry = manifest.models[DRAFT]
    folder = PurePosixPath(_full_graph(entry).file if entry.graphs else f"{DRAFT}/base.onnx").parent
    return sorted(str(folder / name) for names in TRIM_NAMES.values() for name in names)


@dataclass(frozen=True, slots=True)
class _Measure:
    """Measures vocabularies of an open pair's draft."""

    pair: Pair
    root: Path
    stages: Stages
    threads: int | None

    @property
    def draft(self) -> LanguageModel:
        draft = self.pair.draft
        assert draft is not None, "packs without a draft were rejected"
        return draft

    @property
    def context(self) -> int:
        """The number of tokens that fit both models' contexts."""
        return min(self.pair.target.card.context, self.draft.card.context)

    def check(self, unranked: Ranking) -> None:
        """Make and open the smallest possible trim, to fail before the long work. Raises ExportError."""
        if not self.draft.card.rollback:
            raise ExportError(
                "the pack's draft has recurrent layers, which cannot roll back a proposal: it cannot be trimmed"
            )
        self._times(unranked.vocabulary(max(1, unranked.always)), tokens=[0], repetitions=1)

    def sizes(self, ranking: Ranking, sizes: Sequence[int], texts: Texts) -> Sizes:
        """Measure these sizes and the full vocabulary."""
        with self.stages.stage("acceptance", len(texts.measured)) as advance:
            kept = [ranking.vocabulary(size).ids for size in sizes] + [np.arange(ranking.vocabulary_size)]
            *accepted, whole = measure_acceptance(self.draft, texts.measured, kept, advance=advance)
        tokens = [token for text in texts.measured for token in text.tokens]
        with self.stages.stage("target's passes"):
            target = time_target(self.pair.target, tokens)
        times = []
        with self.stages.stage("draft's steps", len(sizes)) as advance:
            for size in sizes:
                times.append(self._times(ranking.vocabulary(size), tokens=tokens, repetitions=REPETITIONS))
                advance(1)
        step = median(seconds for seconds, _ in times)
        rows = [
            size_row(size, acceptance, target, step_seconds=step * ratio)
            for size, acceptance, (_, ratio) in zip(sizes, accepted, times, strict=True)
        ]
        return Sizes(tuple(rows), size_row(ranking.vocabulary_size, whole, target, step_seconds=step))

    def _times(self, vocabulary: TrimmedVocabulary, *, tokens: Sequence[int], repetitions: int) -> tuple[float, float]:
        """Time a trim, which is made in a temporary folder over the pack's weights, as `time_drafts`."""
        from .trimmed_graph import write_trimmed

        entry = self.pair.manifest.located(DRAFT)
        with TemporaryDirectory() as folder:
            file, ids = Path(folder) / "trim.onnx", Path(folder) / "trim.ids"
            graph = write_trimmed(_full_graph(entry), entry, self.root, out=file, ids=vocabulary.ids)
            write_token_ids(ids, vocabulary.ids)
            graph = replace(graph, file=str(file), token_ids=str(ids))
            located = replace(entry, rows=len(vocabulary), graphs={"base": graph}, gguf="", gguf_plan="")
            size = self.pair.tokenizer.size
            request = ModelRequest(located, self.root, TRIM, size, Budget(), threads=self.threads)
            with closing(find_runtime(self.pair.runtime).open(request)) as trimmed:
                return time_drafts(self.pair.target, self.draft, trimmed, tokens=tokens, repetitions=repetitions)
