"""Drafts trees with the pack's draft model, in the shape of the plan, with one forward pass per level."""

from __future__ import annotations

from collections.abc import Sequence

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.tree import MOST_NODES, RankRates, TreeShape, best_tree, depths, is_chain
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import UniformSource

from .model_drafter import FullRows, join_state, usable_model, vocabulary_of
from .model_state import ModelState
from .ranking import TreeGuesses
from .source import DraftSetting


class TreeSource:
    """Opens tree drafters, which share the session's state of the draft model.

    Raises CapabilityError if the pack has no draft model or one of its models reads chains only, and BudgetExceeded if
    the draft model's trees do not fit.
    """

    name = "tree"
    needs_model = True
    needs: Sequence[str] = ()

    def open(self, setting: DraftSetting) -> Drafter:
        if not setting.tree:
            raise CapabilityError("this pack's target reads chains only, no trees: use --drafter model")
        model = usable_model(setting)
        if not model.card.tree:
            raise CapabilityError("this pack's draft model reads chains only, no trees: use --drafter model")
        state = join_state(setting, model, self.name)
        if state.guesses is None:
            state.leave(self.name)
            assert state.refused_trees is not None
            raise state.refused_trees
        return TreeDrafter(state, state.guesses, setting)

    def close(self) -> None:
        """Nothing to release: the pair owns the model."""


class TreeDrafter:
    """Fills a shape with the draft model's guesses, and learns how often those of each rank are right.

    The model does not read leaves. The rows that it reads stay pending until the verdict gives the path to keep.
    """

    name = "tree"
    free = False

    def __init__(self, state: ModelState, guesses: TreeGuesses, setting: DraftSetting) -> None:
        self._state = state
        self._guesses = guesses
        self._full_rows = FullRows(vocabulary_of(state.model, setting.vocabulary_size))
        self._ends = setting.ends
        self._draft = EMPTY_DRAFT
        self._rows: dict[int, int] = {}
        """Node of the draft → its pending row in the model's state."""

    @property
    def nbytes(self) -> int:
        return self._state.nbytes_of(self.name)

    def begin(self, context: Sequence[int]) -> None:
        self._state.begin(context)
        self._draft = EMPTY_DRAFT

    def unread(self, context: Sequence[int]) -> int:
        return self._state.unread(context)

    def rates(self) -> RankRates:
        return self._guesses.rates()

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._draft = EMPTY_DRAFT
        limit = self._state.reach(context, limit, plan)
        if limit <= 0:
            return EMPTY_DRAFT
        shape = plan.shape or best_tree(self.rates(), nodes=min(limit, MOST_NODES))
        self._guesses.start(context)
        self._draft = self._grown(self._state.catch_up(context, self._state.model), shape.cut(limit))
        return self._draft

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Score the model's last guesses, of a tree or of another drafter's chain, and keep the accepted rows."""
        if verdict.draft is self._draft and len(self._draft):
            self._keep(verdict)
        self._guesses.score(context, verdict.tokens)

    def close(self) -> None:
        self._state.leave(self.name)

    def _grown(self, row: FloatArray, shape: TreeShape) -> Draft:
        """Return the draft of this shape, filled level by level.

        Nodes without a guess are omitted, with their descendants. An end token has no children.
        """
        self._guesses.rank(self._full_rows(row), ())
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
        guesses = [] if above is None else self._guesses.after(above)
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
        """Read these nodes of one level with the model, and rank the ids that may follow each."""
        read = [path for node in nodes if (path := paths[node]) is not None]
        tokens, parents = [path[-1] for path in read], [rows[shape.parents[node]] for node in nodes]
        logits = self._state.grow(tokens, parents=parents, head=self._state.model)
        for node, path, row in zip(nodes, read, logits, strict=True):
            rows[node] = len(rows) - 1
            self._guesses.rank(self._full_rows(row), path)

    def _drafted(self, shape: TreeShape, paths: Sequence[tuple[int, ...] | None], rows: dict[int, int]) -> Draft:
        """Return a draft of the nodes that have a token, in the shape's order, which is best first."""
        filled = [node for node, path in enumerate(paths) if path is not None]
        place = {node: index for index, node in enumerate(filled)} | {-1: -1}
        self._rows = {place[node]: row for node, row in rows.items() if node >= 0}
        parents = tuple(place[shape.parents[node]] for node in filled)
        tokens = tuple(path[-1] for path in paths if path is not None)
        return (
            Draft(tokens, parents=None if is_chain(parents) else parents, source=self.name) if tokens else EMPTY_DRAFT
        )

    def _keep(self, verdict: Verdict) -> None:
        """Keep the rows of accepted nodes that the model has read."""
        read = [node for node in verdict.path if node in self._rows]
        self._state.keep([self._rows[node] for node in read], [verdict.draft.tokens[node] for node in read])


def _levels(shape: TreeShape) -> list[list[int]]:
    """Return the nodes of each depth."""
    levels: list[list[int]] = []
    for node, depth in enumerate(depths(shape.parents)):
        if depth == len(levels):
            levels.append([])
        levels[depth].append(node)
    return levels
