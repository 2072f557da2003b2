"""Quantized kernels on this processor: measured identical widths are bit-identical, and reproducible text holds.

The widths depend on the processor and the engine; no test expects particular ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest

from edgedecode.arrays import FloatArray
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.drafters.source import DraftSetting
from edgedecode.engines.identical_widths import IdenticalWidths, measure_widths
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.pair import Pair
from edgedecode.runtimes.onnx.kernels.trial import VARIABLE
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session
from edgedecode.testing import toy_pair
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape
from tests.toys import CallDrafter

BLOCKS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 128)]
TOKENS = [int(token) for token in np.random.default_rng(2).integers(0, 259, 220)]
MODES = {"greedy": SamplingOptions(), "sampled": SamplingOptions(temperature=0.9)}


def shape(bits: int, block: int) -> ToyShape:
    return ToyShape(hidden=256, head_size=64, mlp=384, rows=259, bits=bits, block=block)


def read(
    model: LanguageModel, widths: Iterable[int], *, asked: int = 0, adapter: AdapterUse | None = None
) -> dict[int, FloatArray]:
    """Run the tokens in passes of these widths and return the requested rows by position: all, or the last ones."""
    state, found, start = model.new_state(len(TOKENS) + 64), {}, 0
    for width in widths:
        tokens = TOKENS[start : start + width]
        padded = [*tokens, *[0] * (width - len(tokens))]
        rows = range(width - asked if asked else 0, width)
        logits = model.forward(padded, state, rows=rows, adapter=adapter).logits
        found |= {start + row: logits[place].copy() for place, row in enumerate(rows) if row < len(tokens)}
        state.keep(range(len(tokens)))
        start += len(tokens)
        if start == len(TOKENS):
            break
    state.close()
    return found


def check(model: LanguageModel, widths: IdenticalWidths, *, adapter: AdapterUse | None = None) -> None:
    """Run a longer text than the measurement, padded with another token, in equal and in mixed passes."""
    expected = read(model, repeat(widths.drafts[0]), adapter=adapter)
    assert len(expected) == len(TOKENS)
    mixed = np.random.default_rng(5).choice(widths.drafts, len(TOKENS)).tolist()
    readings = [read(model, mixed, adapter=adapter)]
    readings += [read(model, repeat(width), adapter=adapter) for width in widths.drafts]
    readings += [
        read(model, repeat(width), asked=asked, adapter=adapter)
        for width in widths.all
        for asked in widths.drafts[:2]
        if asked < width
    ]
    different = [index for index, found in enumerate(readings) if not same(found, expected)]
    assert different == []


def same(found: dict[int, FloatArray], expected: dict[int, FloatArray]) -> bool:
    return len(found) > 0 and all(row.tobytes() == expected[place].tobytes() for place, row in found.items())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("bits", "block"), BLOCKS)
def test_measured_widths_are_bit_identical(opener: Opener, bits: int, block: int, threads: int) -> None:
    model = opener(shape(bits, block), threads=threads)
    widths = measure_widths(model)
    if widths.drafts:
        check(model, widths)
    model.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("needs", ["kv:int8", "lora"])
@pytest.mark.parametrize("block", [32, 128])
def test_measured_widths_of_other_graphs_are_bit_identical(
    opener: Opener, block: int, needs: str, threads: int
) -> None:
    model = opener(replace(shape(8, block), graphs=("base", "lora", "kv8")), threads=threads, needs=(needs,))
    adapter = None
    if needs == "lora":
        adapter = AdapterUse(name="formal", digest="f0")
        assert isinstance(model, AdapterModel)
        model.add_adapter("f0", [LowRank(0, "o_proj", *normal((8, 256), (256, 8)))])
    widths = measure_widths(model, adapter=adapter)
    if widths.drafts:
        check(model, widths, adapter=adapter)
    model.close()


def normal(*sizes: tuple[int, int]) -> list[np.ndarray]:
    draw = np.random.default_rng(4)
    return [draw.standard_normal(size, np.float32) / 16 for size in sizes]


class MostlyRight:
    """Open drafters that know the continuation and are wrong at every fifth position."""

    name, needs_model, needs = "half true", False, ()

    def __init__(self) -> None:
        self.truth: tuple[int, ...] = ()

    def open(self, setting: DraftSetting) -> CallDrafter:
        def propose(context: Sequence[int], limit: int, _: UniformSource) -> Draft:
            places = range(len(context), min(len(context) + limit, len(self.truth)))
            return Draft(tuple((self.truth[place] + (place % 5 == 0)) % 259 for place in places))

        drafter = CallDrafter(propose)
        drafter.name = self.name
        return drafter

    def close(self) -> None:
        """Do nothing: no resource is held."""


def answer(pair: Pair, sampling: SamplingOptions, **options: object) -> Session:
    full = SessionOptions(sampling=sampling, seed=3, ignore_eos=True, reproducible=True, **options)  # type: ignore[arg-type]
    with pair.session(full) as session:
        session.generate("a prompt of no particular length", max_tokens=50)
    return session


@pytest.fixture(params=["auto", "engine"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with our kernels where this installation has them, and with the engine's."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sampling", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("bits", "block"), BLOCKS)
def test_reproducible_text_is_the_same_with_any_draft_or_refused(
    opener: Opener, bits: int, block: int, sampling: SamplingOptions
) -> None:
    source = MostlyRight()
    with toy_pair() as pair:
        pair.target.close()
        pair.shared.target = opener(shape(bits, block))
        pair.add_drafter_source(source)
        try:
            source.truth = answer(pair, sampling, drafter="none").tokens
        except CapabilityError as error:
            assert str(error).count("identical bits") == 1  # noqa: PT017
            assert not pair.shared.identical_widths[""].drafts
            return
        accepted = corrected = 0
        for length in range(1, 17):
            measured = pair.shared.identical_widths.get("")  # never measured where a row's bits depend on the row only
            if measured is not None and length >= max(measured.drafts):
                with pytest.raises(CapabilityError, match=r"--draft-max \d+ at most"):
                    answer(pair, sampling, drafter=source.name, draft_max=length)
                continue
            drafted = answer(pair, sampling, drafter=source.name, draft_max=length)
            assert drafted.tokens == source.truth
            accepted, corrected = accepted + drafted.stats.accepted, corrected + drafted.stats.corrections
        assert accepted > 0
        assert corrected > 0
