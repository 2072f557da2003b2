"""Reproducible text on quantized graphs: the same bits with any draft on our kernels, refused on the engine's."""

from collections.abc import Sequence

import pytest

from edgedecode.decoding.drafts import Draft
from edgedecode.drafters.source import DrafterSource, DraftSetting, Scheduled
from edgedecode.errors import CapabilityError
from edgedecode.pair import Pair
from edgedecode.runtimes.onnx.kernels.trial import VARIABLE
from edgedecode.sampling.probs import UniformSource
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.sessions.session import Session
from edgedecode.testing import toy_pair
from tests.contract.conftest import Opener
from tests.contract.toy_graph import ToyShape
from tests.toys import CallDrafter, session_options

BLOCKS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 128)]
MODES = {"greedy": SamplingOptions(), "sampled": SamplingOptions(temperature=0.9)}


class MostlyRight(DrafterSource):
    """Open drafters that know the continuation and are wrong at every fifth position."""

    name, scheduled = "half true", Scheduled.BY_NAME

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


def use_target(pair: Pair, opener: Opener, *, bits: int, block: int) -> None:
    """Replace the pair's target with a quantized graph."""
    pair.target.close()
    pair.shared.target = opener(ToyShape(hidden=256, head_size=64, mlp=384, rows=259, bits=bits, block=block))


def answer(pair: Pair, sampling: SamplingOptions, **options: object) -> Session:
    full = session_options(sampling=sampling, seed=3, ignore_eos=True, reproducible=True, **options)
    with pair.session(full) as session:
        session.generate("a prompt of no particular length", max_tokens=50)
    return session


@pytest.mark.parametrize("sampling", MODES.values(), ids=MODES)
@pytest.mark.parametrize(("bits", "block"), BLOCKS)
def test_reproducible_text_is_the_same_with_any_draft(
    opener: Opener, bits: int, block: int, sampling: SamplingOptions
) -> None:
    source = MostlyRight()
    with toy_pair() as pair:
        use_target(pair, opener, bits=bits, block=block)
        if not pair.target.card.kernels:
            pytest.skip("our kernels do not run here")
        pair.add_drafter_source(source)
        source.truth = answer(pair, sampling, drafter="none").tokens
        accepted = corrected = 0
        for length in range(1, 17):
            drafted = answer(pair, sampling, drafter=source.name, draft_max=length)
            assert drafted.tokens == source.truth
            accepted, corrected = accepted + drafted.stats.accepted, corrected + drafted.stats.corrections
        assert answer(pair, sampling).tokens == source.truth
    assert accepted > 0
    assert corrected > 0


def test_reproducible_text_is_refused_with_the_engines_kernels(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "engine")
    with toy_pair() as pair:
        use_target(pair, opener, bits=4, block=32)
        with pytest.raises(CapabilityError, match="leave out --reproducible") as made:
            pair.session(session_options(reproducible=True))
        assert "\n" not in str(made.value)
        assert pair.session().generate("hello", max_tokens=5).tokens
