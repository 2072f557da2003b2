"""Drafts trees with the pack's draft model: one of its passes a level, in the shape that a plan gives."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.decoding.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.probs import UniformSource
from edgedecode.decoding.tree import MOST_NODES, RankRates, TreeShape, best_tree, depths, is_chain
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError

from .model_drafter import ModelDrafter, ModelSource
from .rank_rates import RankSurvival
from .ranking import Ranking
from .source import DraftSetting

__all__ = ["TreeDrafter", "TreeSource"]

WATCHED = 4
"""Of so many of the model drafter's chains one is looked at for what its further guesses were worth."""


class TreeSource:
    """Opens tree drafters, on the session's model drafter or on one of their own.

    Raises CapabilityError when the pack has no draft model, or one of its models reads chains only, and BudgetExceeded
    when the draft model's trees do not fit.
    """

    name = "tree"
    needs_model = True
    needs: Sequence[str] = ()

    def __init__(self) -> None:
        self._models = ModelSource()

    def open(self, setting: DraftSetting) -> Drafter:
        if not setting.tree:
            raise CapabilityError("this pack's target reads chains only, no trees: use --drafter model")
        if setting.draft_model is not None and not setting.draft_model.card.tree:
            raise CapabilityError("this pack's draft model reads chains only, no trees: use --drafter model")
        shared = setting.opened.get("model")
        own = not isinstance(shared, ModelDrafter)
        model = self._models.open(setting) if own else shared
        assert isinstance(model, ModelDrafter)
        if model.reading.refused_trees is not None:
            if own:
                model.close()
            raise model.reading.refused_trees
        return TreeDrafter(model, setting, own=own)

    def close(self) -> None:
        self._models.close()


class TreeDrafter:
    """Fills a shape with the draft model's guesses, and learns how often which of them was right.

    Nodes without children are never read, and what was read stays pending until the verdict says which path is kept.
    own: nobody else tells the model drafter of rounds; it is closed with this one.
    """

    name = "tree"
    free = False

    def __init__(self, model: ModelDrafter, setting: DraftSetting, *, own: bool) -> None:
        self._model = model
        self._own = own
        self._ends = setting.ends
        self._survival = RankSurvival()
        self._ranking = Ranking(setting, breadth=self._survival.breadth)
        self._guesses: dict[tuple[int, ...], list[int]] = {}
        """Path of drafted tokens → what was thought likeliest after it, from the place `_at` on."""
        self._at = -1
        self._draft = EMPTY_DRAFT
        self._rows: dict[int, int] = {}
        """Node of the draft → its pending row in the model's state."""
        self._chains = 0
        if not own:
            model.watch = self._watch

    @property
    def nbytes(self) -> int:
        return self._model.nbytes if self._own else 0

    def begin(self, context: Sequence[int]) -> None:
        if self._own:
            self._model.begin(context)
        self._ranking.follow(context, anew=True)
        self._at, self._draft = -1, EMPTY_DRAFT

    def unread(self, context: Sequence[int]) -> int:
        return self._model.unread(context)

    def rates(self) -> RankRates:
        return self._survival.rates()

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._at, self._draft = -1, EMPTY_DRAFT
        limit = self._model.reading.reach(context, limit, plan)
        if limit <= 0:
            return EMPTY_DRAFT
        shape = plan.shape or best_tree(self.rates(), nodes=min(limit, MOST_NODES))
        self._ranking.follow(context)
        self._draft = self._grown(self._model.row(context), shape.cut(limit))
        self._at = len(context)
        return self._draft

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        if self._own:
            self._model.observe(context, verdict)
        emitted = verdict.tokens
        if self._at != len(context) - len(emitted):
            return
        if verdict.draft is self._draft:
            self._keep(verdict)
        for depth, token in enumerate(emitted):
            guesses = self._guesses.get(emitted[:depth])
            if guesses is None:
                break
            self._survival.score(depth, guesses.index(token) if token in guesses else None)

    def close(self) -> None:
        if self._own:
            self._model.close()
        else:
            self._model.watch = None

    def _grown(self, row: FloatArray, shape: TreeShape) -> Draft:
        """Give every node of the shape its token, level by level; nodes without a guess are left out with what follows.

        Nothing follows an end token.
        """
        self._guesses = {(): self._ranking.ranked(row, ())}
        paths: list[tuple[int, ...] | None] = [None] * len(shape)
        rows: dict[int, int] = {-1: -1}
        inner = frozenset(shape.parents)
        for level in _levels(shape):
            for node in level:
                paths[node] = self._path(shape, node, paths)
            read = [node for node in level if node in inner and self._open(paths[node])]
            if not read:
                break
            self._read(read, shape, paths=paths, rows=rows)
        return self._drafted(shape, paths, rows)

    def _path(self, shape: TreeShape, node: int, paths: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
        parent, rank = shape.parents[node], shape.ranks[node]
        above = () if parent < 0 else paths[parent]
        guesses = [] if above is None else self._guesses.get(above, [])
        return None if above is None or rank >= len(guesses) else (*above, guesses[rank])

    def _open(self, path: tuple[int, ...] | None) -> bool:
        return path is not None and path[-1] not in self._ends

    def _read(
        self,
        nodes: Sequence[int],
        shape: TreeShape,
        *,
        paths: Sequence[tuple[int, ...] | None],
        rows: dict[int, int],
    ) -> None:
        """Read these nodes of one level with the model, and rank what may follow each of them."""
        read = [path for node in nodes if (path := paths[node]) is not None]
        logits = self._model.grow([path[-1] for path in read], parents=[rows[shape.parents[node]] for node in nodes])
        for node, path, row in zip(nodes, read, logits, strict=True):
            rows[node] = len(rows) - 1
            self._guesses[path] = self._ranking.ranked(self._model.full(row), path)

    def _drafted(self, shape: TreeShape, paths: Sequence[tuple[int, ...] | None], rows: dict[int, int]) -> Draft:
        """Return the nodes that have a token, in the shape's order, which is best first."""
        there = [node for node, path in enumerate(paths) if path is not None]
        place = {node: index for index, node in enumerate(there)} | {-1: -1}
        self._rows = {place[node]: row for node, row in rows.items() if node >= 0}
        parents = tuple(place[shape.parents[node]] for node in there)
        tokens = tuple(path[-1] for path in paths if path is not None)
        return (
            Draft(tokens, parents=None if is_chain(parents) else parents, source=self.name) if tokens else EMPTY_DRAFT
        )

    def _keep(self, verdict: Verdict) -> None:
        """Settle the accepted nodes that the model has read."""
        read = [node for node in verdict.path if node in self._rows]
        self._model.reading.keep([self._rows[node] for node in read], [verdict.draft.tokens[node] for node in read])

    def _watch(self, row: FloatArray, path: Sequence[int], context: Sequence[int]) -> None:
        """Rank a row of one of the model drafter's chains, so that trees are known before one is tried."""
        if not path:
            self._chains += 1
            self._guesses, self._at = {}, len(context)
        if self._chains % WATCHED == 0:
            self._ranking.follow(context)
            self._guesses[tuple(path)] = self._ranking.ranked(row, path)


def _levels(shape: TreeShape) -> list[list[int]]:
    """Return the nodes by depth."""
    levels: list[list[int]] = []
    for node, depth in enumerate(depths(shape.parents)):
        if depth == len(levels):
            levels.append([])
        levels[depth].append(node)
    return levels
