"""Experience is stored per pack, engine and device; an unreadable file is reported and replaced by an empty one."""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from edgedecode.schedule.experience import Experience
from edgedecode.schedule.scheduler import Scheduler
from edgedecode.sessions.experience_file import experience_path, load_experience, store_experience
from edgedecode.testing import toy_pair
from tests.toys import session_options
from tests.virtual import always, simulate


def learned() -> Experience:
    experience = Experience()
    simulate(Scheduler(free=["free"], models=["model"], experience=experience), tokens=100, free=always, model=always)
    experience.history.under("formal")
    return experience


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    with toy_pair() as pair:
        path = experience_path(pair.manifest, engine="table", version="1", settings=("cpu", 2))
    assert path is not None
    return path


def test_load_experience_returns_what_was_stored(place: Path) -> None:
    experience = learned()
    store_experience(place, experience)
    experience.doubt()
    assert load_experience(place).as_dict() == experience.as_dict()
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_experience_path_differs_by_engine_version_and_settings(place: Path) -> None:
    with toy_pair() as pair:
        manifest = pair.manifest
    others = {
        experience_path(manifest, engine=engine, version=version, settings=settings)
        for engine, version, settings in (
            ("other", "1", ("cpu", 2)),
            ("table", "2", ("cpu", 2)),
            ("table", "1", ("cpu", 1)),
        )
    }
    assert len(others) == 3
    assert place not in others


@pytest.mark.parametrize("content", ["", "nonsense", "[]", "{}", '{"edgedecode_costs": 99}', "[" * 100_000, "\x00"])
def test_load_experience_reports_damage_and_starts_empty(
    place: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    place.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
        assert load_experience(place).as_dict() == Experience().as_dict()
    assert "measured again" in caplog.text
    assert caplog.text.count("\n") == 1


@pytest.mark.parametrize("broken", ['"step": NaN', '"step": -1', '"step": "much"', '"tried": [NaN]'])
def test_load_experience_treats_impossible_numbers_as_damage(
    place: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    store_experience(place, learned())
    name, _, value = broken.partition(": ")
    text = re.sub(rf"{name}: (\[[^]]*\]|[-.e0-9]+)", f"{name}: {value}", place.read_text(encoding="utf-8"), count=1)
    assert broken in text
    place.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
        assert load_experience(place).as_dict() == Experience().as_dict()
    assert "measured again" in caplog.text


def test_load_experience_without_a_file_is_silent(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
        load_experience(place)
        load_experience(None)
    assert not caplog.text


def test_store_experience_ignores_an_unwritable_path(tmp_path: Path) -> None:
    store_experience(tmp_path / "no" / "folder.json", learned())


def test_keep_experience_carries_over_to_another_pair(place: Path) -> None:
    with toy_pair() as pair:
        pair.keep_experience(place)
        with pair.session(session_options(seed=1, ignore_eos=True)) as session:
            session.generate("hello", max_tokens=40)
        known = Experience.from_dict(pair.experience.as_dict())
    known.doubt()
    with toy_pair() as again:
        again.keep_experience(place)
        assert again.experience.as_dict() == known.as_dict()


WRONG = (0, -1, 1e-320, 1e308, 10**400, True, None, [], float("nan"), float("inf"))


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in a tree."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from places(child, (*path, key))


def replaced(value: Any, path: Sequence[str | int], new: object) -> object:
    """Return a copy of a tree with another value at this path."""
    copy = json.loads(json.dumps(value))
    reduce(lambda tree, key: tree[key], path[:-1], copy)[path[-1]] = new
    return copy


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_load_experience_with_any_wrong_value_leaves_decoding_running(place: Path) -> None:
    """Replace every value by every wrong one: it is reported as damage, or is harmless."""
    store_experience(place, learned())
    whole = json.loads(place.read_text(encoding="utf-8"))
    cases = damaged = 0
    for where in places(whole):
        for wrong in WRONG:
            place.write_text(json.dumps(replaced(whole, where, wrong)), encoding="utf-8")
            experience = load_experience(place)
            cases += 1
            if experience.as_dict() == Experience().as_dict():
                damaged += 1
                continue
            scheduler = Scheduler(free=["free"], models=["model"], experience=experience)
            simulate(scheduler, tokens=8, free=always, model=always)
    assert cases > 500
    assert cases > damaged > cases / 2


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        (("tables", "0", "step"), 0),
        (("history", "free:3", "tried", 0), 0),
        (("kinds", "formal", "tables", "free:3", "tried", 0), 0),
        (("balances", "model"), 10**400),
        (("host", "none"), 10**400),
        (("tables", "0", "seen", "2"), 10**400),
    ],
)
def test_load_experience_treats_numbers_that_would_crash_as_damage(
    where: tuple[str | int, ...], wrong: float, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store_experience(place, learned())
    whole = json.loads(place.read_text(encoding="utf-8"))
    place.write_text(json.dumps(replaced(whole, where, wrong)), encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.user_notices"):
        experience = load_experience(place)
    assert caplog.text.count("measured again") == 1
    assert experience.as_dict() == Experience().as_dict()
    simulate(Scheduler(free=["free"], models=["model"], experience=experience), tokens=50, free=always, model=always)
