"""Chooses the lanes of a bundle's self-test and runs them. A new lane is a class and an entry of `LANES`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from edgedecode.errors import InputError, ManifestError

from ..bundle import Bundle
from ..lint.lint import lint_bundle
from .lane import Lane, LaneResult, Options
from .llama_lane import LlamaLane
from .onnx_lanes import Arm64Lane, CpuLane, NpuLane

LANES: tuple[Lane, ...] = (CpuLane(), Arm64Lane(), NpuLane(), LlamaLane())


def check_bundle(root: Path) -> Bundle:
    """Read a bundle that `lint` finds no error in. Raises ManifestError: native code reads its files next."""
    for finding in lint_bundle(root):
        if finding.level == "error":
            raise ManifestError(
                f"{root / finding.file} {finding.message}: {finding.remedy} (`edgedecode lint {root}` lists all errors)"
            )
    return Bundle.load(root)


def run_lanes(root: Path, bundle: Bundle, options: Options, names: Sequence[str] | None) -> Iterator[LaneResult]:
    """Run the lanes that suit the bundle, or those named, which must be able to run. Raises InputError."""
    known = {lane.name: lane for lane in LANES}
    if names is not None:
        for name in names:
            if name not in known:
                raise InputError(f"--lane {name}: the lanes are {', '.join(known)}")
            if not known[name].suits(bundle):
                raise InputError(f"--lane {name}: a bundle for {bundle.target} does not run there")
            if missing := known[name].missing(options):
                raise InputError(f"--lane {name}: {missing}")
    for lane in LANES:
        if names is None and not lane.suits(bundle):
            continue
        if names is not None and lane.name not in names:
            continue
        if missing := lane.missing(options):
            yield LaneResult(lane.name, reason=missing, ran=False)
        else:
            yield lane.run(root, bundle, options)
