"""`--prepare`: a pack that was just made is opened once, so that its weights lie ready in the user's cache."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from edgedecode.errors import EdgeDecodeError

if TYPE_CHECKING:
    from .report import Report

__all__ = ["add_prepare", "prepare_pack", "prepared_line"]

_ENGINE = "onnx"
"""The engine whose kernels read weights in a layout of their own."""


def add_prepare(parser: ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="then lay the weights out for this machine's kernels, in the cache, so that the first chat opens at once",
    )


def prepare_pack(out: Path) -> Report:
    """Open a pack's models once on ONNX Runtime and return which kernels they have; empty: the engine's own.

    An error says that the pack is there.
    """
    from edgedecode import load

    from .quiet import notices_shown
    from .report import LiveDisplay
    from .stages import Stages

    try:
        with (
            notices_shown(),
            LiveDisplay() as display,
            Stages(display).stage("prepare weights"),
            load(out, runtime=_ENGINE) as pair,
        ):
            models = {"target": pair.target, "draft": pair.draft}
            return {role: model.card.kernels for role, model in models.items() if model is not None}
    except EdgeDecodeError as error:
        said, *others = error.args
        error.args = (f"the pack {out} is complete; its weights are not prepared: {said}", *others)
        raise


def prepared_line(kernels: Report) -> str:
    """Say which kernels the weights were prepared for."""
    found = sorted({str(name) for name in kernels.values() if name})
    if not found:
        return "nothing to prepare: ONNX Runtime's own kernels run this pack here (`edgedecode devices` says why)"
    return f"weights prepared for this machine's kernels ({', '.join(found)})"
