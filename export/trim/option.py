"""`export … --trim-vocab`: its option and refusals; the trim itself comes after the pack is made."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.commands import positive_count
from edgedecode.errors import EdgeDecodeError

if TYPE_CHECKING:
    from ..report import Report

__all__ = ["TrimSize", "add_trim", "check_trim", "trim_exported"]

_BEST = "best"
_ENGINE = "onnx"
"""What the exporter's own graphs run on."""


@dataclass(frozen=True, slots=True)
class TrimSize:
    """How many ids a draft's trimmed head keeps; None: the best of several, if one wins."""

    ids: int | None


def add_trim(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--trim-vocab",
        nargs="?",
        const=_BEST,
        type=_size,
        metavar="N",
        help="then trim the draft's vocabulary as `edgedecode trim` does: to N ids, or where that wins",
    )


def check_trim(arguments: Namespace) -> None:
    """End with a usage error where nothing is made that could be trimmed."""
    if arguments.trim_vocab is None:
        return
    if arguments.draft is None:
        arguments.usage_error("argument --trim-vocab: it trims a draft's vocabulary, give --draft")
    if arguments.dry_run:
        arguments.usage_error("argument --trim-vocab: --dry-run makes no pack to trim")


def trim_exported(out: Path, size: TrimSize) -> Report:
    """Trim a pack that was just made, print what was found, and return it as values.

    An error says that the pack is there.
    """
    from .command import run_trim
    from .request import TrimRequest

    complete = f"the pack {out} is complete and untrimmed (`edgedecode trim` tries again)"
    try:
        return run_trim(TrimRequest(pack=out, size=size.ids, runtime=_ENGINE))
    except EdgeDecodeError as error:
        said, *others = error.args
        error.args = (f"{complete}: {said}", *others)
        raise
    except BrokenPipeError:  # it was trimmed, and nobody listened
        raise
    except OSError as error:
        error.strerror = f"{complete}: {error.strerror or error}"
        raise


def _size(text: str) -> TrimSize:
    return TrimSize(None if text == _BEST else positive_count(text))
