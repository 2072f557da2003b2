"""Drafters that are one function: registered as an entry point, listed by `--drafter`, used by the scheduler."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points

import pytest

from edgedecode.apps.verb_options import add_session_options
from edgedecode.drafters.lookup import LookupSource
from edgedecode.engines import registry
from edgedecode.engines.registry import DRAFTERS, LOOKUPS, drafter_names, find_drafter, lookup_names
from edgedecode.errors import CapabilityError
from edgedecode.options import SessionOptions
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import toy_pair
from tests.toys import draft_setting

ASKED: list[int] = []


def repeat(context: Sequence[int], limit: int) -> Sequence[int]:
    """Propose the last tokens again."""
    ASKED.append(limit)
    return context[-limit:]


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    found = EntryPoints([*entry_points(group=DRAFTERS), EntryPoint(name, value, LOOKUPS)])
    monkeypatch.setattr(registry, "every_entry_point", lambda: found)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "repeat", f"{__name__}:repeat")
    ASKED.clear()


def answer(**options: object) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return an answer's tokens, and how many each drafter proposed."""
    sampling = SamplingOptions(temperature=0.8)
    with toy_pair() as pair, pair.session(SessionOptions(sampling=sampling, seed=5, **options)) as session:  # type: ignore[arg-type]
        done = session.generate("ab" * 20, max_tokens=60)
        return done.tokens, {name: drafter.proposed for name, drafter in done.stats.drafters.items()}


def test_lookup_is_a_choice_of_the_drafter_option(registered: None) -> None:
    parser = ArgumentParser()
    add_session_options(parser)
    assert "repeat" in drafter_names()
    assert "repeat, suffix" in " ".join(parser.format_help().split())


def test_lookup_chosen_by_name_drafts_and_keeps_the_targets_text(registered: None) -> None:
    tokens, proposed = answer(drafter="repeat", draft_max=4)
    assert proposed["repeat"] >= 60
    assert max(ASKED) >= 4
    assert tokens == answer(drafter="none")[0]


def test_lookup_is_scheduled_with_the_other_drafters(registered: None) -> None:
    with toy_pair() as pair:
        assert "repeat" in pair.drafter_names(SessionOptions())
        assert "repeat" not in pair.drafter_names(SessionOptions(drafter="suffix"))
    tokens, _ = answer()
    assert ASKED
    assert tokens == answer(drafter="none")[0]


def test_lookup_draft_is_cut_at_the_limit_and_after_an_end_token() -> None:
    source = LookupSource("rest", lambda context, limit: [7, 8, 9, 2, 5])
    drafter = source.open(draft_setting(20, ends=frozenset({9})))
    assert drafter.propose([1], 2, Noise(0)).tokens == (7, 8)
    assert drafter.propose([1], 5, Noise(0)).tokens == (7, 8, 9)
    assert (drafter.propose([1], 5, Noise(0)).source, len(drafter.propose([1], 0, Noise(0)))) == ("rest", 0)


def test_lookup_that_cannot_be_loaded_is_an_error_only_if_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "gone", "edgedecode_absent_package.drafts:look")
    assert answer()[0]
    with pytest.raises(CapabilityError, match=r"the drafter 'gone' cannot be loaded.*install its package again"):
        answer(drafter="gone")


def test_lookup_cannot_take_the_name_of_another_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "suffix", f"{__name__}:repeat")
    assert lookup_names() == ()
    assert not isinstance(find_drafter("suffix"), LookupSource)
