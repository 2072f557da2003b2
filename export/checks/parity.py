"""Checks a graph's logits against transformers with the same rounded weights.

The text is run in one pass, in pieces, after a crop, as a tree and as 16 branches, and compared with one reference pass
over text and tree.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel, State
from edgedecode.errors import ExportError

from .reference import Reference

TOLERANCE = 1e-3
"""Maximum error of kernels that do not round activations, relative to the logits' deviation if that exceeds 1."""
LOOSE = 0.25
"""Maximum root mean square error of kernels that round activations, relative to the logits' deviation."""

_PARENTS = (-1, 0, 0, 1, 1, 2, -1, 3)
"""A tree on the text's last token: nodes 0 to 2 run in the first pass, 3 to 6 in the second, 7 after the kept path."""
_FIRST, _SECOND = 3, 7
_PATH = (0, 1, 3)
_BRANCHES = 16
"""Number of two-token branches besides the tree; all first tokens run in one pass, all second ones in another."""
_NODES = (*_PARENTS, *(-1,) * _BRANCHES, *range(len(_PARENTS), len(_PARENTS) + _BRANCHES))
NODES = len(_NODES)
"""Positions that a state needs in addition to the text."""


@dataclass(frozen=True, slots=True)
class ParityText:
    """A text, and the tokens of the tree and branches that follow its last token."""

    text: tuple[int, ...]
    tree: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[int], *, length: int) -> "ParityText":
        """Take `length` tokens, repeated if there are fewer, and tree tokens from the same text."""
        text = tuple(tokens[index % len(tokens)] for index in range(length))
        return cls(text, tuple(text[(3 * node + 1) % length] for node in range(len(_NODES))))


def reference_rows(reference: Reference, text: ParityText) -> FloatArray:
    """Return the reference's logits, [text and tree, rows], from one pass with the tree encoded in the mask."""
    length, nodes = len(text.text), len(text.tree)
    visible: npt.NDArray[np.bool_] = np.tri(length + nodes, dtype=np.bool_)
    depths: list[int] = []
    for node, parent in enumerate(_NODES):
        visible[length + node, length:] = visible[length + parent, length:] if parent >= 0 else False
        visible[length + node, length + node] = True
        depths.append(0 if parent < 0 else depths[parent] + 1)
    positions = [*range(length), *(length + depth for depth in depths)]
    return reference.logits((*text.text, *text.tree), visible=visible, positions=positions)


def own_rows(model: LanguageModel, text: ParityText) -> FloatArray:
    """Return a model's logits, [text and tree, rows]: the text in one pass, each branch of the tree as a chain."""
    length = len(text.text)
    with closing(model.new_state(length + len(text.tree), rows=length)) as state:
        rows = [model.forward(text.text, state, rows="all").logits.copy()]
        state.keep(range(length))
        for node in range(len(text.tree) if model.card.tree else 0):
            branch = [text.tree[step] for step in _branch(node)]
            rows.append(model.forward(branch, state, rows="last").logits.copy())
            state.crop(length)
        return np.concatenate(rows)


def check_exact(model: LanguageModel, text: ParityText, expected: FloatArray) -> Mapping[str, float]:
    """Check a model that does not round activations, in every way a state can grow. Raises ExportError."""
    errors = {way: float(np.abs(found - wanted).max()) for way, found, wanted in _ways(model, text, expected)}
    limit = TOLERANCE * max(1.0, float(expected.std()))
    if wrong := {way: error for way, error in errors.items() if not error <= limit}:
        found = ", ".join(f"{way}_error {error:.2g}" for way, error in wrong.items())
        raise ExportError(f"the exported graph's results do not match its weights ({found}, allowed {limit:.2g})")
    return {f"{way}_error": error for way, error in errors.items()}


def check_kernels(model: LanguageModel, text: ParityText, expected: FloatArray) -> Mapping[str, float]:
    """Run the shipped kernels in the same ways and measure their error on the full text.

    Returns the maximum error, the root mean square error relative to the logits' deviation, and the share of rows with
    the same arg-max. Raises ExportError if the relative error is larger than rounding of activations could explain.
    """
    ways = [*_ways(model, text, expected)]
    errors = {way: relative_error(found, wanted) for way, found, wanted in ways}
    if wrong := {way: error for way, error in errors.items() if not error <= LOOSE}:
        described = ", ".join(f"{way} {error:.2g}" for way, error in wrong.items())
        raise ExportError(
            f"the shipped kernels' results do not match the weights (relative error {described}, allowed {LOOSE}): "
            f"export with --activations 16, with other --bits, or with another release of onnxruntime"
        )
    _, found, wanted = ways[0]
    largest = float(np.abs(found - wanted).max())
    return {"kernel_max_error": largest, "kernel_rms_error": errors["max"], "kernel_top1": agreement(found, wanted)}


def _ways(model: LanguageModel, text: ParityText, expected: FloatArray) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Grow one state in every way; yield its name in the manifest, the logits and the expected ones."""
    length = len(text.text)
    with closing(model.new_state(length + len(text.tree))) as state:
        yield "max", _whole(model, state, text), expected[:length]
        yield "crop", _after_crop(model, state, text), expected[length // 2 : length]
        yield "pieces", _in_pieces(model, state, text), expected[length // 2 : length]
        if model.card.tree and len(expected) > length:  # no mask makes a tree in a reference's recurrent layers
            first = length + len(_PARENTS)
            yield "branches", _as_branches(model, state, text), expected[first:]
            yield "tree", _as_tree(model, state, text), expected[length:first]


def _branch(node: int) -> list[int]:
    """Return the nodes from a child of the text to `node`."""
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = _NODES[node]
    return path


def _whole(model: LanguageModel, state: State, text: ParityText) -> FloatArray:
    rows = model.forward(text.text, state, rows="all").logits.copy()
    state.keep(range(len(text.text)))
    return rows


def _after_crop(model: LanguageModel, state: State, text: ParityText) -> FloatArray:
    """Go back to the first half, or to what a recurrent state has of it, and read the rest again."""
    half = len(text.text) // 2
    state.crop(half)
    again = half - state.length
    rows = model.forward(text.text[state.length :], state, rows="all").logits[again:].copy()
    state.crop(0)
    return rows


def _in_pieces(model: LanguageModel, state: State, text: ParityText) -> FloatArray:
    """Run the first half without logits, then a single row, then the others."""
    half = len(text.text) // 2
    model.forward(text.text[:half], state, rows="none")
    state.keep(range(half))
    first = model.forward(text.text[half : half + 1], state, rows="last").logits.copy()
    state.keep((0,))
    others = model.forward(text.text[half + 1 :], state, rows="all").logits.copy()
    state.keep(range(len(text.text) - half - 1))
    return np.concatenate((first, others))


def _as_branches(model: LanguageModel, state: State, text: ParityText) -> FloatArray:
    """Grow all branches by one token, then by another, and roll them back."""
    firsts, seconds = text.tree[-2 * _BRANCHES : -_BRANCHES], text.tree[-_BRANCHES:]
    top = model.forward(firsts, state, parents=(-1,) * _BRANCHES, rows="all").logits.copy()
    leaves = model.forward(seconds, state, parents=range(_BRANCHES), rows="all").logits.copy()
    state.crop(len(text.text))
    return np.concatenate((top, leaves))


def _as_tree(model: LanguageModel, state: State, text: ParityText) -> FloatArray:
    """Grow the tree in two passes, keep one path, and continue from its end."""
    tree = text.tree[: len(_PARENTS)]
    first = model.forward(tree[:_FIRST], state, parents=_PARENTS[:_FIRST], rows="all").logits.copy()
    second = model.forward(tree[_FIRST:_SECOND], state, parents=_PARENTS[_FIRST:_SECOND], rows="all").logits.copy()
    state.keep(_PATH)
    last = model.forward(tree[_SECOND:], state, rows="all").logits.copy()
    return np.concatenate((first, second, last))


def relative_error(found: FloatArray, expected: FloatArray) -> float:
    """Return the root mean square error relative to the expected logits' deviation."""
    deviation = max(float(expected.std()), float(np.finfo(np.float32).tiny))
    return float(np.sqrt(np.mean((found - expected) ** 2)) / deviation)


def agreement(found: FloatArray, expected: FloatArray) -> float:
    """Return the share of rows with the same arg-max."""
    return float((found.argmax(-1) == expected.argmax(-1)).mean())
