"""Passes of fixed widths: what a number of rows costs where a pass is padded to the next width."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def fixed_width(rows: int, widths: Sequence[int]) -> int:
    """Return the width that a pass over `rows` rows takes, of these ascending ones; 1 if a single row takes it too.

    No widths: any. More rows than the widest take several passes, so their number is returned.
    """
    width = next((width for width in widths if width >= rows), rows)
    return 1 if widths and width == widths[0] else width


def fixed_curve(curve: Sequence[float], widths: Sequence[int]) -> list[float]:
    """Return the cost of each number of rows, from the costs of the widths themselves, relative to a single row."""
    if not widths:
        return list(curve)
    widest = min(widths[-1], len(curve) - 1)
    found = [curve[min(fixed_width(rows, widths), widest)] for rows in range(widest + 1)]
    for rows in range(widest + 1, len(curve)):
        found.append(found[widest] + found[rows - widest])
    return found


def fixed_prior(beta: npt.NDArray[np.float64], widths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the expected cost of one more row by width, from that without fixed widths.

    A fixed width is expected to cost what the fewest rows that take it would.
    """
    rows = np.arange(len(beta))
    fewest = [next(few for few in range(n + 1) if few == n or fixed_width(few, widths) >= n) for n in rows]
    found: npt.NDArray[np.float64] = beta[fewest] * np.maximum(0, np.asarray(fewest) - 1) / np.maximum(1, rows - 1)
    found[:2] = beta[:2]
    return found
