"""Chooses the matrices that get 8 bits: those whose rounding to 4 is expected to change the model most.

The change is that of the last hidden state: the sum of its squared errors, to first order. An output's part in it is
the mean square of its error, times that of its gradient if the state's own gradient is a random sign in every place
(Hutchinson's estimator). Error feedback leaves of each weight's rounding what later inputs do not predict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from edgedecode.arrays import FloatArray

from ..checks.reference import Reference
from ..graph.error_feedback import Moments
from ..graph.recipe import Recipe, matrix_name, projection_name
from ..graph.scale_search import largest_scales
from ..graph.weight_bytes import Matrix
from .calibration import Tokens, passes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TOKENS = 512
"""Length of the text that gradients are measured on, in tokens. More change the choice little."""


def find_gradients(
    reference: Reference, texts: Tokens, *, progress: Callable[[int], None] = lambda amount: None
) -> dict[str, FloatArray]:
    """Return the mean squared gradient of each output of the projections, float32 [outputs], by module name."""
    original, rng, count = reference.of_originals(), np.random.default_rng(0), 0
    sums: dict[str, torch.Tensor] = {}

    def collect(name: str) -> Callable[[torch.nn.Module, object, torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            squares = gradient.reshape(-1, gradient.shape[-1]).square().sum(dim=0)
            sums[name] = sums[name] + squares if name in sums else squares

        def after(module: torch.nn.Module, arguments: object, output: torch.Tensor) -> None:
            if output.requires_grad:
                output.register_hook(add)

        return after

    with ExitStack() as hooks:
        for name, module in _projections(original.network):
            hooks.callback(module.register_forward_hook(collect(name)).remove)
        for tokens, visible, positions in passes(texts, apart=original.recurrent):
            signs = rng.choice(np.array([-1, 1], np.float32), (len(tokens), original.network.config.hidden_size))
            original.backward(tokens, signs, visible=visible, positions=positions)
            count += len(tokens)
            progress(len(tokens))
    return {name: (total / count).numpy() for name, total in sums.items()}


def expected_changes(
    reference: Reference,
    gradients: Mapping[str, FloatArray],
    moments: Mapping[str, Moments],
    *,
    block_size: int,
    release: Callable[[], None],
) -> dict[str, float]:
    """Return how much rounding a matrix to 4 bits is expected to change the last hidden state, by `matrix_name`.

    Calls `release` after each projection is read.
    """
    found: dict[str, float] = {}
    for name, module in _projections(reference.network):
        factors = moments[projection_name(name)].factors()
        unpredicted = np.concatenate([factor.diagonal() ** -2 for factor in factors]).reshape(-1, block_size)
        matrix = matrix_name(name)
        for chunk in Matrix((module.weight,)).chunks():
            steps = largest_scales(chunk.values.reshape(len(chunk.values), -1, block_size))
            errors = np.square(steps) @ unpredicted.sum(axis=1) / 12
            rows = gradients[name][chunk.start : chunk.start + len(errors)]
            found[matrix] = found.get(matrix, 0.0) + float(rows @ errors)
        release()
    return found


def matrix_sizes(network: PreTrainedModel) -> Mapping[str, int]:
    """Return the number of weights of each matrix of the layers, by `matrix_name`."""
    sizes: Counter[str] = Counter()
    for name, module in _projections(network):
        sizes[matrix_name(name)] += module.weight.numel()
    return sizes


def choose_matrices(recipe: Recipe, sizes: Mapping[str, int], changes: Mapping[str, float]) -> list[str]:
    """Return the matrices that change most for their size, in at most as many bytes as those of `recipe`."""
    room = sum(sizes[name] for name in recipe.matrices)
    found = set[str]()
    for name in sorted(changes, key=lambda name: -changes[name] / sizes[name]):
        if sizes[name] <= room:
            found.add(name)
            room -= sizes[name]
    return [name for name in changes if name in found]


def _projections(network: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Linear]]:
    import torch

    for name, module in network.model.named_modules(prefix="model"):
        if isinstance(module, torch.nn.Linear) and matrix_name(name):
            yield name, module
