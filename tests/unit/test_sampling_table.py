"""The table of sampling options: flag, manifest key and default of each entry, and an entry added by a test."""

import json
from argparse import ArgumentParser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pytest

from edgedecode.apps.verb_options import add_session_options, session_options
from edgedecode.arrays import FloatArray
from edgedecode.errors import InputError, ManifestError
from edgedecode.options import sampling_defaults
from edgedecode.pack.entries import FileEntry
from edgedecode.pack.manifest import Manifest
from edgedecode.sampling.penalties import Marked
from edgedecode.sampling.row_draw import NumpyRowDraw
from edgedecode.sampling.weights import SamplingOption, SamplingOptions, sampling_table
from edgedecode.testing import toy_pair
from tests.toys import quick_draw

ROWS = pytest.mark.parametrize("option", sampling_table(), ids=lambda option: option.name)


def likely_enough(weights: FloatArray, top_a: float) -> npt.NDArray[np.bool_]:
    return weights >= np.float32(top_a / float(weights.astype(np.float64).sum()))


@dataclass(frozen=True, slots=True)
class Options(SamplingOptions):
    top_a: Annotated[
        float, SamplingOption((0.0, 1.0), allowed="0 (off) to 1", flag="--top-a A", help="top-a", keeps=likely_enough)
    ] = 0.0


def some(option: SamplingOption) -> float:
    """Return a value that makes the option active."""
    least, most = option.between
    return min(7, most) if option.whole else 0.5 * (max(least, 0.0) + min(most, 1.0))


@ROWS
def test_sampling_option_is_off_by_default_and_active_otherwise(option: SamplingOption) -> None:
    assert SamplingOptions().active == {}
    options = replace(SamplingOptions(), **{option.name: some(option)})
    assert options.active == {option.name: option}
    wrong = min(-1, option.between[0] - 1)
    with pytest.raises(InputError, match=f"{option.name} {wrong} is out of range: "):
        replace(SamplingOptions(), **{option.name: wrong})


@ROWS
def test_sampling_option_has_a_flag_that_the_guide_names(option: SamplingOption) -> None:
    parser = ArgumentParser()
    add_session_options(parser)
    flag = option.flag.split()[0]
    arguments = parser.parse_args([flag, str(some(option))])
    arguments.ctx_size = None
    with toy_pair() as pair:
        assert session_options(arguments, pair).sampling == replace(SamplingOptions(), **{option.name: some(option)})
    assert f"`{flag}`" in (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")


@ROWS
def test_sampling_option_default_round_trips_through_the_manifest(option: SamplingOption) -> None:
    with toy_pair() as pair:
        defaults = replace(pair.manifest.generation, sampling={option.name: some(option)})
        files = {name: FileEntry(nbytes=1, sha256="ab" * 32) for name in pair.manifest.named()}
        manifest = replace(pair.manifest, generation=defaults, files=files)
    document = json.loads(manifest.to_json())
    assert document["generation"][option.name] == some(option)
    assert Manifest.from_json(document) == manifest
    assert [*sampling_defaults(defaults).active] == [option.name]
    document["generation"][option.name] = "much"
    with pytest.raises(ManifestError, match=rf"manifest\.generation\.{option.name} is 'much': expected "):
        Manifest.from_json(document)


def test_quick_draw_uses_numpy_for_options_the_native_code_lacks() -> None:
    rng = np.random.default_rng(5)
    native, defined = quick_draw(), NumpyRowDraw()
    row = (2 * rng.standard_normal(3000)).astype(np.float32)
    seen = Marked.of(dict.fromkeys(range(0, 3000, 7), 1))
    options = Options(temperature=1.3, top_p=0.99, repetition_penalty=1.2, top_a=0.9)
    drawn = [native.draw(row, options, key=key, seen=seen) for key in range(64)]
    assert drawn == [defined.draw(row, options, key=key, seen=seen) for key in range(64)]
    without = replace(options, top_a=0.0)
    assert drawn != [native.draw(row, without, key=key, seen=seen) for key in range(64)]
    assert options.ranking(4) == Options(temperature=1.0, top_k=4, repetition_penalty=1.2)
