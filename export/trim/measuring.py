"""Measures smaller heads of an open pair's draft: acceptance, step times and predicted speed-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from edgedecode import Pair
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import Runtime
from edgedecode.errors import ExportError

from ..stages import Stages
from .forced_acceptance import Acceptance, Nested, measure_acceptance
from .head_files import make_heads, opened_trim, trimmed_head
from .id_ranking import Ranking, always_kept, rank_ids, sweep_sizes
from .material import Material
from .pack_change import Workplace
from .sweep import Costs, Sweep, SweepRow, bytes_ratio, predict
from .timing import REPETITIONS, HeadTimes, PassTimes, time_heads, time_target
from .trim_texts import CALIBRATION

_COVERAGE_MARGIN = 0.25
"""Share of the allowed misses kept in reserve: a size that just reaches the bound on one text may miss it on another.

A larger value tries larger vocabularies."""


@dataclass(slots=True)
class Bench:
    """An open pair, its engine, and a place for temporary files."""

    pair: Pair
    runtime: Runtime
    place: Workplace
    stages: Stages
    threads: int | None = None

    @property
    def always(self) -> frozenset[int]:
        """The ids that every size keeps."""
        return always_kept(self.pair.tokenizer, self.pair.manifest.generation)

    @property
    def draft(self) -> LanguageModel:
        draft = self.pair.draft
        assert draft is not None, "packs without a draft were rejected"
        return draft

    def ranking(self, texts: Sequence[Sequence[int]]) -> Ranking:
        """Rank the vocabulary by these tokens."""
        return rank_ids(texts, always=self.always, vocabulary_size=self.pair.tokenizer.size)

    def sizes(self, size: int | None) -> tuple[int, ...]:
        """Return the sizes to measure, ascending: only `size`, or several for None. Raises InputError for no trim."""
        if size is None:
            return sweep_sizes(vocabulary_size=self.pair.tokenizer.size, always=len(self.always))
        self.ranking([]).vocabulary(size)
        return (size,)

    def with_covering(
        self, sizes: Sequence[int], ranking: Ranking, material: Material, *, bound: float
    ) -> tuple[int, ...]:
        """Add the smallest sizes that reach the bound, with and without margin, on held-out text not reported on."""
        tokens = [token for text in material.choosing for token in text.scored]
        found = (ranking.size_covering(tokens, share) for share in (bound, bound + _COVERAGE_MARGIN * (1 - bound)))
        return tuple(sorted({*sizes, *(size for size in found if size is not None)}))

    def check(self) -> None:
        """Make and open the smallest possible head, to fail before the long work. Raises ExportError."""
        if not self.draft.card.rollback:
            raise ExportError(
                "the pack's draft has recurrent layers, which cannot roll back a proposal: it cannot be trimmed"
            )
        with self.stages.stage("draft's head"):
            smallest = self.ranking([]).vocabulary(max(1, len(self.always)))
            self._times(smallest, tokens=[0], repetitions=1)

    def sweep(self, ranking: Ranking, sizes: Sequence[int], material: Material, *, bound: float) -> Sweep:
        """Measure these sizes and the full vocabulary on this material."""
        found = self._acceptances(Nested.of(ranking, sizes), material)
        tokens = [token for text in material.categories[CALIBRATION] for token in text.tokens]
        with self.stages.stage("target's passes"):
            target = time_target(self.pair.target, tokens)
        times = []
        with self.stages.stage("draft's steps", len(sizes)) as advance:
            for size in sizes:
                times.append(self._times(ranking.vocabulary(size), tokens=tokens, repetitions=REPETITIONS))
                advance(1)
        step = median(each.whole_seconds for each in times)
        rows = [
            self._row(size, column, step_seconds=step * each.ratio, found=found, target=target)
            for column, (size, each) in enumerate(zip(sizes, times, strict=True))
        ]
        whole = self._row(ranking.vocabulary_size, len(sizes), step_seconds=step, found=found, target=target)
        return Sweep(tuple(rows), whole, target, bound, CALIBRATION)

    def _acceptances(self, nested: Nested, material: Material) -> dict[str, tuple[Acceptance, ...]]:
        total = sum(len(texts) for texts in material.categories.values())
        with self.stages.stage("acceptance", total) as advance:
            return {
                name: measure_acceptance(self.draft, texts, nested, advance=advance)
                for name, texts in material.categories.items()
            }

    def _times(self, vocabulary: TrimmedVocabulary, *, tokens: Sequence[int], repetitions: int) -> HeadTimes:
        """Make the heads for a vocabulary, time draft steps with them, and remove them."""
        heads = make_heads(self.place, self.pair.manifest, vocabulary=vocabulary)
        size, manifest = self.pair.tokenizer.size, self.pair.manifest
        opened = opened_trim(self.runtime, heads, self.place, manifest, vocabulary_size=size, threads=self.threads)
        try:
            with opened as trim:
                target, head = self.pair.target, trimmed_head(trim)
                return time_heads(target, self.draft, trim, head, tokens=tokens, repetitions=repetitions)
        finally:
            self.place.remove(heads.paths)

    def _row(
        self,
        size: int,
        column: int,
        *,
        step_seconds: float,
        found: Mapping[str, tuple[Acceptance, ...]],
        target: PassTimes,
    ) -> SweepRow:
        costs = Costs(step_seconds, bytes_ratio(self.pair.manifest, size=size))
        return SweepRow(size, costs, {name: predict(each[column], costs, target) for name, each in found.items()})
