"""Chart files: the path is checked before anything is measured, and the file is written atomically.

matplotlib is an optional dependency, imported only to plot, without its GUI.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.cache import aside
from edgedecode.errors import InputError, RuntimeUnavailable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (".svg", ".png")
_CHART_NBYTES = 1 << 18
"""Upper bound on a chart's size; the check writes this much to the folder."""
_DOTS_PER_INCH = 150


def check_plot(path: Path) -> None:
    """Raise InputError if the file could not be written later, RuntimeUnavailable without matplotlib."""
    folder = path.absolute().parent
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"--plot {path}: charts are .svg or .png files, such as {path.stem or 'plot'}.svg")
    if not folder.is_dir():
        raise InputError(f"--plot {path}: there is no folder {folder}")
    if path.is_dir():
        raise InputError(f"--plot {path} is a folder: name a file in it")
    if find_spec("matplotlib") is None:
        raise RuntimeUnavailable("--plot needs matplotlib, not installed: pip install 'edgedecode[plot]'")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_CHART_NBYTES))
    except OSError as error:
        raise _not_writable(path, error) from None


def write_plot(path: Path, figure: Figure) -> None:
    """Write a chart atomically. Raises InputError if that fails."""
    from matplotlib import rc_context

    try:
        with aside(path) as fresh, rc_context({"svg.fonttype": "none"}):  # keeps text as text, not paths
            figure.savefig(fresh, format=path.suffix.lower().removeprefix("."), dpi=_DOTS_PER_INCH)
    except OSError as error:
        raise _not_writable(path, error) from None


def _not_writable(path: Path, error: OSError) -> InputError:
    return InputError(f"--plot {path} cannot be written: {error.strerror or error}")
