"""The key of an unfinished export: equal for the same work, different for anything that changes the result."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edgedecode.export.graph.recipe import Recipe
from edgedecode.export.job import ModelJob
from edgedecode.export.pair_export import PairRequest, check_pair
from edgedecode.export.resume.step_cache import canonical, job_key

from .conftest import recipe
from .test_refusals import configure

pytestmark = pytest.mark.export


def job(model: Path, *, stored: Recipe | None = None, noise: int = 0) -> ModelJob:
    request = PairRequest(str(model), None, Path("pack"), stored or recipe(8), noise_positions=noise)
    return check_pair(request, out=None).jobs[0]


def key(model: Path, *, stored: Recipe | None = None, noise: int = 0) -> str:
    return job_key(job(model, stored=stored, noise=noise), [model / "model.safetensors"])


def test_job_key_is_equal_for_the_same_work(llama: Path) -> None:
    assert key(llama) == key(llama) == key(llama, noise=2000)


def test_job_key_changes_with_anything_that_changes_the_result(llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    weights = [model / "model.safetensors"]
    found = [key(model), key(model, stored=recipe(4)), job_key(replace(job(model), role="draft"), weights)]
    configure(rms_norm_eps=1e-3)(model)
    found.append(key(model))
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    found.append(key(model))
    weights[0].write_bytes(weights[0].read_bytes())
    found.append(key(model))
    assert len(set(found)) == len(found)


@dataclass(frozen=True)
class FutureOption:
    """An option that a later version may add to a recipe."""

    value: object


def test_canonical_compares_values_by_content(tmp_path: Path) -> None:
    large, other = np.zeros(100_000), np.zeros(100_000)
    other[50_000] = 1  # in the part that numpy's repr leaves out
    assert canonical(FutureOption(large)) == canonical(FutureOption(large.copy())) != canonical(FutureOption(other))
    path = tmp_path / "file"
    path.write_text("a")
    before = canonical(FutureOption({"matrix": path}))
    assert before == canonical(FutureOption({"matrix": path}))
    path.write_text("b")
    assert canonical(FutureOption({"matrix": path})) != before
    assert canonical([1, (2.5, None)]) == canonical([1, (2.5, None)]) != canonical([1, (2.5, "None")])
    assert canonical({3, 1}) == canonical({1, 3})


def test_canonical_of_unknown_objects_is_never_equal() -> None:
    unknown = object()
    assert canonical(FutureOption(unknown)) != canonical(FutureOption(unknown))
