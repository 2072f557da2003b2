"""Installed drafters, functions and classes: listed by `--drafter`, used by the scheduler as they declare."""

import re
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import ClassVar

import pytest

from edgedecode.decoding.drafter import Drafter
from edgedecode.decoding.drafts import Draft
from edgedecode.decoding.verify import Rule, Verdict
from edgedecode.drafters.lookup import LookupSource
from edgedecode.drafters.source import DrafterSource, DraftSetting, Scheduled
from edgedecode.engines import registry
from edgedecode.engines.registry import DRAFTERS, LOOKUPS, NAMED_DRAFTERS, drafter_names, find_drafter
from edgedecode.errors import CapabilityError, InputError
from edgedecode.options import SessionOptions
from edgedecode.sampling.sampler import Noise
from edgedecode.sampling.weights import SamplingOptions
from edgedecode.testing import toy_pair
from edgedecode.user_notices import NOTICES
from tests.toys import CallDrafter, draft_setting, session_options

ASKED: list[int] = []


def repeat(context: Sequence[int], limit: int) -> Sequence[int]:
    """Propose the last tokens again."""
    ASKED.append(limit)
    return context[-limit:]


class CountingDrafter(CallDrafter):
    """Proposes the last tokens again, and counts the rounds that it was told of."""

    name, free = "counting", True

    def __init__(self) -> None:
        super().__init__(lambda context, limit, _: Draft(tuple(context[-limit:])))
        self.rounds = 0

    def observe(self, context: Sequence[int], verdict: Verdict) -> None:
        self.rounds += 1


class CountingSource(DrafterSource):
    """Opens drafters with a state, for which the scheduler's defaults hold."""

    name = "counting"
    opened: ClassVar[list[CountingDrafter]] = []

    def open(self, setting: DraftSetting) -> Drafter:
        self.opened.append(CountingDrafter())
        return self.opened[-1]


class ShySource(CountingSource):
    scheduled = Scheduled.BY_NAME


class LonelySource(CountingSource):
    scheduled = Scheduled.WITHOUT_DRAFT


class BranchingSource(CountingSource):
    branches = True


def register(monkeypatch: pytest.MonkeyPatch, name: str, value: str, group: str = LOOKUPS) -> None:
    found = EntryPoints([*entry_points(group=DRAFTERS), EntryPoint(name, value, group)])
    monkeypatch.setattr(registry, "every_entry_point", lambda: found)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "repeat", f"{__name__}:repeat")
    ASKED.clear()


def answer(pass_seconds: float | None = None, **options: object) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return an answer's tokens, and how many each drafter proposed."""
    sampling = SamplingOptions(temperature=0.8)
    with (
        toy_pair(pass_seconds=pass_seconds) as pair,
        pair.session(session_options(sampling=sampling, seed=5, **options)) as session,
    ):
        done = session.generate("ab" * 20, max_tokens=60)
        return done.tokens, {name: drafter.proposed for name, drafter in done.stats.drafters.items()}


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


def test_a_class_of_another_package_is_scheduled_and_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "counting", f"{__name__}:CountingSource", DRAFTERS)
    CountingSource.opened.clear()
    tokens, proposed = answer(0.015)
    assert (tokens, proposed) == answer(0.015)  # the virtual clock is the only one
    drafter, again = CountingSource.opened
    assert drafter.rounds == again.rounds > 0
    named, proposed = answer(drafter="counting", draft_max=4)
    assert proposed["counting"] > 0
    assert tokens == named == answer(drafter="none")[0]


def test_a_drafter_used_by_name_only_is_imported_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source would be scheduled, and branches, which nobody may learn before it is named."""
    register(monkeypatch, "counting", f"{__name__}:BranchingSource", NAMED_DRAFTERS)
    assert "counting" in drafter_names()
    with toy_pair() as pair:
        assert "counting" not in pair.shared.sources
        assert "counting" not in pair.drafter_names(SessionOptions())
        with (
            pytest.raises(InputError, match="--drafter counting needs a fixed size"),
            pair.session(session_options(drafter="counting")),
        ):
            pass
        assert "counting" in pair.shared.sources


@pytest.mark.parametrize("source", [CountingSource, ShySource, LonelySource, BranchingSource])
@pytest.mark.parametrize("has_draft", [True, False], ids=["with a draft", "without"])
def test_a_drafter_is_scheduled_where_its_source_says(
    source: type[CountingSource], has_draft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, "counting", f"{__name__}:{source.__name__}", DRAFTERS)
    with toy_pair() as pair:
        if not has_draft:
            pair.shared.preferred = ()
        chosen = pair.drafter_names(SessionOptions())
        assert ("counting" in chosen) == (source is CountingSource or (source is LonelySource and not has_draft))
        assert ("model" in chosen) == has_draft
        assert ("recycle" in chosen) != has_draft


def test_a_drafter_whose_source_branches_or_does_not_sample_is_refused_where_that_matters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(monkeypatch, "counting", f"{__name__}:BranchingSource", DRAFTERS)
    with toy_pair() as pair:
        with pytest.raises(InputError, match="--drafter counting needs a fixed size: give --draft-max N"):
            pair.session(SessionOptions(drafter="counting"))
        with pytest.raises(CapabilityError, match="one sampled chain: with --drafter counting, use the match rule"):
            pair.session(session_options(drafter="counting", draft_max=4, rule=Rule.RATIO))
        with pair.session(SessionOptions(drafter="counting", draft_max=4)) as session:
            assert session.generate("ab", max_tokens=8).tokens
    register(monkeypatch, "counting", f"{__name__}:CountingSource", DRAFTERS)
    with toy_pair() as pair, pytest.raises(CapabilityError, match="samples from the draft model: with --drafter count"):
        pair.session(session_options(drafter="counting", rule=Rule.RATIO))


def test_lookup_draft_is_cut_at_the_limit_and_after_an_end_token() -> None:
    source = LookupSource("rest", lambda context, limit: [7, 8, 9, 2, 5])
    drafter = source.open(draft_setting(20, ends=frozenset({9})))
    assert drafter.propose([1], 2, Noise(0)).tokens == (7, 8)
    assert drafter.propose([1], 5, Noise(0)).tokens == (7, 8, 9)
    assert (drafter.propose([1], 5, Noise(0)).source, len(drafter.propose([1], 0, Noise(0)))) == ("rest", 0)


def failing() -> None:
    raise OSError("no table")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("failing", r"\(no table\): install its package again"),
        ("CountingDrafter", "CountingDrafter returns no DrafterSource"),
    ],
)
def test_a_broken_plug_in_is_an_error_only_if_chosen_by_name(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, "counting", f"{__name__}:{value}", DRAFTERS)
    assert answer()[0]
    with pytest.raises(CapabilityError, match=f"the drafter 'counting' cannot be loaded.*{why}"):
        answer(drafter="counting")


def test_a_drafter_of_another_name_than_its_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "adding", f"{__name__}:CountingSource", DRAFTERS)
    assert answer()[0]
    with pytest.raises(CapabilityError, match="the drafter of 'adding' has the name 'counting': both need the same"):
        answer(drafter="adding")


PLUG_IN = """
from edgedecode.drafters.source import DrafterSource
class Source(DrafterSource):
    name = "broken"
    def open(self, setting):
        raise KeyError("table")
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package whose drafter fails in `open`."""
    (tmp_path / "broken_plug_in.py").write_text(PLUG_IN)
    about = tmp_path / "broken_plug_in-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{DRAFTERS}]\nbroken = broken_plug_in:Source\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.every_entry_point.cache_clear()
    yield
    registry.every_entry_point.cache_clear()


def test_a_plug_in_that_fails_to_open_is_left_out_with_one_notice(
    broken: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", NOTICES)
    why = "the drafter 'broken' cannot be opened (KeyError: 'table'): update its package or remove it"
    with toy_pair() as pair:
        assert "broken" in pair.drafter_names(SessionOptions())
        texts = set()
        for _ in range(2):
            with pair.session(SessionOptions(seed=5)) as session:
                texts.add(session.generate("ab", max_tokens=8).tokens)
        with pair.session(SessionOptions(seed=5, drafter="none")) as session:
            assert texts == {session.generate("ab", max_tokens=8).tokens}
        assert [record.getMessage() for record in caplog.records if record.name == NOTICES] == [
            f"{why}; answers do without it"
        ]
        for _ in range(2):
            with pytest.raises(CapabilityError, match=re.escape(why)):
                pair.session(SessionOptions(drafter="broken"))


def test_lookup_cannot_take_the_name_of_another_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, "suffix", f"{__name__}:repeat")
    assert not isinstance(find_drafter("suffix"), LookupSource)
