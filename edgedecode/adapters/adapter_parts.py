"""Maps an adapter's matrices to the products of a model that they change, and to the outputs of each product.

A product may be one of PEFT's projections, or a stack of several.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edgedecode.decoding.model import LowRank
from edgedecode.errors import CapabilityError, InputError
from edgedecode.pack.manifest import STACKS

FLOAT_NBYTES = 4
LARGER = "export the pack again with --lora-rank {}"
MAKING = 2
"""Memory that an engine needs while it lays out one projection's matrices, in sizes of the result in float32."""


@dataclass(frozen=True, slots=True)
class Projection:
    """A product of the model that takes a delta of [inputs, r] and [r, outputs]."""

    layer: int
    module: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of an adapter that change one projection."""

    projection: Projection
    parts: Sequence[LowRank]

    @property
    def rank(self) -> int:
        return sum(part.rank for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the joined matrices."""
        return FLOAT_NBYTES * self.rank * (self.projection.inputs + self.projection.outputs)


def part_starts(module: str, *, outputs: int, kv_width: int) -> list[int]:
    """Return the first output of each projection in a product: of query, key and value, or of gate and up."""
    if module == "qkv_proj":
        return [0, outputs - 2 * kv_width, outputs - kv_width]
    return [0, outputs // 2] if module in STACKS else [0]


def check_invocation(tokens: Sequence[int], *, vocabulary_size: int) -> None:
    """Raise InputError if a token that activates an adapter is not in the model's vocabulary."""
    if beyond := [token for token in tokens if token >= vocabulary_size]:
        raise InputError(
            f"the adapter is activated by the token {beyond[0]}, but the model's vocabulary has {vocabulary_size} "
            f"tokens: the adapter is for another model"
        )


class Projections:
    """The projections of one model that take an adapter.

    rank: the largest allowed. hint: advice if one is missing. larger: advice on an adapter of a larger rank, {}.
    """

    def __init__(
        self,
        projections: Sequence[Projection],
        *,
        name: str,
        rank: int,
        modules: Sequence[str],
        kv_width: int,
        hint: str,
        larger: str = LARGER,
    ) -> None:
        self._projections = projections
        self._name, self._rank, self._modules = name, rank, modules
        self._kv_width = kv_width
        self._hint, self._larger = hint, larger

    def sort(self, matrices: Sequence[LowRank]) -> list[Parts]:
        """Assign an adapter's parts to the projections they change; return all projections of the model.

        Raises CapabilityError for a projection or rank that the model does not take, InputError for wrong sizes.
        """
        found: dict[Projection, list[LowRank]] = {projection: [] for projection in self._projections}
        for change in matrices:
            self.check_rank(change.rank)
            for projection in self._changed(change):
                part = self._piece(projection, change)
                self._check_sizes(projection, part)
                found[projection].append(part)
        return [Parts(projection, parts) for projection, parts in found.items()]

    def check_rank(self, rank: int) -> None:
        """Raise CapabilityError for a rank that the model does not take."""
        if rank > self._rank and self._projections:
            raise CapabilityError(
                f"an adapter of rank {rank} does not fit {self._name}, which takes ranks up to "
                f"{self._rank}: {self._larger.format(rank)}"
            )

    def stack(self, given: Parts) -> LowRank:
        """Stack an adapter's parts of one product, without the zeros of `join`.

        For a product of P projections, with R the largest rank of one: down [P * R, inputs], up [outputs, R]. The
        outputs of projection p use rows p * R to p * R + R - 1 of `down`.
        """
        product = given.projection
        starts, rank, pieces = self._stacked(given)
        filled = [0] * len(starts)
        down = np.zeros((len(starts), rank, product.inputs), np.float32)
        up = np.zeros((product.outputs, rank), np.float32)
        for index, part, outputs in pieces:
            columns = slice(filled[index], filled[index] + part.rank)
            down[index, columns] = part.down
            first = starts[index]
            up[first : first + outputs.stop - outputs.start, columns] = part.up[outputs]
            filled[index] += part.rank
        return LowRank(product.layer, product.module, down.reshape(-1, product.inputs), up)

    def most_nbytes(self, given: Parts, *, scaled: bool = False) -> int:
        """Return the most memory of `stack` or `join` for a product; scaled: with a second `up`."""
        starts, rank, _ = self._stacked(given)
        inputs, outputs = given.projection.inputs, given.projection.outputs * (1 + scaled)
        return FLOAT_NBYTES * max(rank * (len(starts) * inputs + outputs), given.rank * (inputs + outputs))

    def join(self, given: Parts) -> LowRank:
        """Join the parts of one product along the rank; `up` is zero outside each part's outputs."""
        projection = given.projection
        down = np.empty((given.rank, projection.inputs), np.float32)
        up = np.zeros((projection.outputs, given.rank), np.float32)
        start = 0
        for part in given.parts:
            columns = slice(start, start + part.rank)
            down[columns] = part.down
            up[self._place(projection, part), columns] = part.up
            start += part.rank
        return LowRank(projection.layer, projection.module, down, up)

    def _stacked(self, given: Parts) -> tuple[list[int], int, list[tuple[int, LowRank, slice]]]:
        """Return where the product's projections start, their largest rank, and each one's pieces of the parts."""
        product = given.projection
        starts = part_starts(product.module, outputs=product.outputs, kv_width=self._kv_width)
        pieces = [
            (index, part, slice(start - place.start, stop - place.start))
            for part in given.parts
            for place in (self._place(product, part),)
            for index, (start, stop) in enumerate(pairwise([*starts, product.outputs]))
            if place.start <= start < place.stop
        ]
        ranks = [sum(part.rank for index, part, _ in pieces if index == own) for own in range(len(starts))]
        return starts, max(ranks), pieces

    def _changed(self, part: LowRank) -> Sequence[Projection]:
        """Return the projection that is or contains the part's, or those that the part's consists of."""
        here = {projection.module: projection for projection in self._projections if projection.layer == part.layer}
        if part.module in self._modules:
            for name in (part.module, *(stack for stack, parts in STACKS.items() if part.module in parts)):
                if name in here:
                    return (here[name],)
        names = STACKS.get(part.module, ())
        if names and here.keys() >= set(names):
            return [here[name] for name in names]
        known = ", ".join(self._modules) or "none"
        raise CapabilityError(
            f"{self._name} takes no adapter for layer {part.layer} {part.module}; it takes: {known} ({self._hint})"
        )

    def _piece(self, projection: Projection, part: LowRank) -> LowRank:
        """Return the piece of the part for this projection: all of it, unless the part's consists of several."""
        names = STACKS.get(part.module, ())
        if projection.module not in names:
            return part
        widths = {other.module: other.outputs for other in self._projections if other.layer == part.layer}
        start = sum(widths[name] for name in names[: names.index(projection.module)])
        # The last one takes the rest, so that matrices of a wrong size are detected.
        stop = part.shapes[1][0] if projection.module == names[-1] else start + projection.outputs
        return part.piece(projection.module, start, stop)

    def _check_sizes(self, projection: Projection, part: LowRank) -> None:
        place = self._place(projection, part)
        wanted = (projection.inputs, place.stop - place.start)
        down, up = part.shapes
        if (down[1], up[0]) != wanted or up[1] != part.rank:
            raise InputError(
                f"layer {part.layer} {part.module}: matrices {down} and {up} do not fit a "
                f"projection of {wanted[0]} inputs and {wanted[1]} outputs: the adapter is for another model"
            )

    def _place(self, projection: Projection, part: LowRank) -> slice:
        """Return the outputs of the projection that the part changes."""
        if projection.module == part.module:
            return slice(0, projection.outputs)
        starts = part_starts(projection.module, outputs=projection.outputs, kv_width=self._kv_width)
        index = STACKS[projection.module].index(part.module)
        return slice(starts[index], [*starts, projection.outputs][index + 1])


def graph_projections(shapes: Mapping[str, Sequence[int]]) -> Iterator[Projection]:
    """Yield the products of a graph that take a delta, from its optional inputs `lora.L.M.a` and `lora.L.M.b`."""
    for name, shape in shapes.items():
        if name.startswith("lora.") and name.endswith(".a"):
            _, layer, module, _ = name.split(".")
            yield Projection(int(layer), module, inputs=shape[0], outputs=shapes[f"{name[:-1]}b"][1])
