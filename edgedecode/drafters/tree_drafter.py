"""Drafts trees of a fixed shape with the pack's draft model, with one forward pass per level."""

from collections.abc import Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import EMPTY_DRAFT, Draft, is_chain
from edgedecode.decoding.policy import WHOLE, Plan
from edgedecode.decoding.verify import Verdict
from edgedecode.errors import CapabilityError
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.sampler import Sampler

from .model_drafter import FullRows, join_state, usable_model, vocabulary_of
from .model_state import MOST_NODES, ModelState
from .source import DrafterSource, DraftSetting, Scheduled

CHANCES = (0.6, 0.15, 0.07, 0.04)
"""How often the draft model's first, second, ... guess is expected to be right, wherever it is in the tree.

Assumed for a weak draft model. With the rates of the bundled pair (0.81, 0.05, 0.01, 0.02 in greedy answers) the best
tree is nearly always a chain.
"""


class TreeShape(NamedTuple):
    """A tree without its tokens, best first: node i continues node parents[i] (-1: the context) with the draft model's
    guess of rank ranks[i], 0 being the likeliest."""

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def levels(self) -> list[list[int]]:
        """The nodes of each depth."""
        levels: list[list[int]] = []
        depth = {-1: -1}
        for node, parent in enumerate(self.parents):
            depth[node] = depth[parent] + 1
            if depth[node] == len(levels):
                levels.append([])
            levels[depth[node]].append(node)
        return levels


@cache
def tree_shape(nodes: int) -> TreeShape:
    """Return the tree of this many nodes with the most expected tokens.

    The chance of a node is the product of `CHANCES` down to it, so the likeliest nodes are the best tree, and its first
    n nodes the best one of n. Sequoia (2402.12374) finds the same tree by dynamic programming.
    """
    parents, ranks = list[int](), list[int]()
    waiting = [(-chance, -1, rank) for rank, chance in enumerate(CHANCES)]
    """Heap of negative chance, parent and rank."""
    while len(parents) < nodes:
        chance, parent, rank = heappop(waiting)
        for below, share in enumerate(CHANCES):
            heappush(waiting, (chance * share, len(parents), below))
        parents.append(parent)
        ranks.append(rank)
    return TreeShape(tuple(parents), tuple(ranks))


class TreeSource(DrafterSource):
    """Opens tree drafters, which share the session's state of the draft model.

    Raises CapabilityError if the pack has no draft model or one of its models reads chains only, and BudgetExceeded if
    the draft model's trees do not fit.
    """

    name = "tree"
    scheduled = Scheduled.BY_NAME
    needs_model = branches = True

    def open(self, setting: DraftSetting) -> Drafter:
        if not setting.tree:
            raise CapabilityError("this pack's target reads chains only, no trees: use --drafter model")
        model = usable_model(setting)
        if not model.card.tree:
            raise CapabilityError("this pack's draft model reads chains only, no trees: use --drafter model")
        return TreeDrafter(join_state(setting, model, self.name), setting)


class TreeDrafter:
    """Fills the shape with the draft model's guesses: by probability for greedy decoding, else by the target's noise.

    The same noise mostly samples the same id from two similar distributions. The following guesses are the ids that it
    would sample if the earlier ones were excluded. The model does not read leaves. The rows that it reads stay pending
    until the verdict gives the path to keep.
    """

    name = "tree"
    free = False

    def __init__(self, state: ModelState, setting: DraftSetting) -> None:
        self._state, self._ends = state, setting.ends
        self._full_rows = FullRows(vocabulary_of(state.model, setting.vocabulary_size))
        self._noise = None if setting.sampling.greedy else setting.noise
        breadth = len(CHANCES)  # without noise, a greedy row would have one id only
        options = setting.sampling if self._noise is not None else setting.sampling.ranking(breadth)
        self._sampler = Sampler(options, vocabulary_size=setting.vocabulary_size, row_draw=setting.row_draw)
        self._length = 0
        """Tokens of the context that the sampler has."""
        self._draft = EMPTY_DRAFT
        self._rows: dict[int, int] = {}
        """Node of the draft → its pending row in the model's state."""

    @property
    def nbytes(self) -> int:
        return self._state.nbytes_of(self.name)

    def begin(self, context: Sequence[int]) -> None:
        self._state.begin(context)
        self._sampler.begin(context)
        self._length, self._draft = len(context), EMPTY_DRAFT

    def unread(self, context: Sequence[int]) -> int:
        return self._state.unread(context)

    def propose(self, context: Sequence[int], limit: int, rng: UniformSource, plan: Plan = WHOLE) -> Draft:
        self._draft = EMPTY_DRAFT
        limit = min(MOST_NODES, self._state.reach(context, limit, plan))
        if limit <= 0:
            return EMPTY_DRAFT
        self._sampler.extend(context[self._length :])
        self._length = len(context)
        self._draft = self._grown(self._state.catch_up(context), tree_shape(limit))
        return self._draft

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        """Keep the rows of accepted nodes that the model has read."""
        if verdict.draft is self._draft and len(self._draft):
            read = [node for node in verdict.path if node in self._rows]
            self._state.keep([self._rows[node] for node in read], [self._draft.tokens[node] for node in read])

    def close(self) -> None:
        self._state.leave(self.name)

    def _grown(self, row: FloatArray, shape: TreeShape) -> Draft:
        """Return the draft of this shape, filled level by level.

        Nodes without a guess are omitted, with their descendants. An end token has no children.
        """
        tokens, rows, inner = dict[int, int](), {-1: -1}, frozenset(shape.parents)
        guesses = {-1: self._ranked(row, [])}
        for level in shape.levels:
            for node in level:
                known = guesses.get(shape.parents[node], [])
                if shape.ranks[node] < len(known):
                    tokens[node] = known[shape.ranks[node]]
            read = [node for node in level if node in inner and tokens.get(node, -1) not in {-1, *self._ends}]
            if not read:
                break
            parents = [rows[shape.parents[node]] for node in read]
            logits = self._state.grow([tokens[node] for node in read], parents=parents)
            for node, after in zip(read, logits, strict=True):
                rows[node] = len(rows) - 1
                guesses[node] = self._ranked(after, _path(node, shape, tokens))
        return self._drafted(shape, tokens, rows)

    def _ranked(self, row: FloatArray, path: Sequence[int]) -> list[int]:
        """Return the ids that may follow the context and `path`, best first, from the model's row of logits there."""
        position, logits = self._length + len(path), self._full_rows(row)
        if self._noise is not None:
            probs = self._sampler.probs(logits, path, key=self._noise.key_at(position))
            return self._noise.ranked_at(probs, position, count=len(CHANCES))
        probs = self._sampler.probs(logits, path)
        best: list[int] = probs.ids[np.argsort(-probs.p, kind="stable")][: len(CHANCES)].tolist()
        return best

    def _drafted(self, shape: TreeShape, tokens: Mapping[int, int], rows: Mapping[int, int]) -> Draft:
        """Return a draft of the nodes that have a token, in the shape's order."""
        place = {node: index for index, node in enumerate(sorted(tokens))} | {-1: -1}
        self._rows = {place[node]: row for node, row in rows.items() if node >= 0}
        if not tokens:
            return EMPTY_DRAFT
        parents = tuple(place[shape.parents[node]] for node in sorted(tokens))
        ids = tuple(tokens[node] for node in sorted(tokens))
        return Draft(ids, parents=None if is_chain(parents) else parents, source=self.name)


def _path(node: int, shape: TreeShape, tokens: Mapping[int, int]) -> list[int]:
    """Return the tokens from the tree's root down to a node."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, tokens[node])
        node = shape.parents[node]
    return path
