"""What was learnt is kept per pack, engine and device; what cannot be read is begun afresh with a notice."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from edgedecode import SessionOptions
from edgedecode.experience import Experience
from edgedecode.experience_file import experience_path, load_experience, store_experience
from edgedecode.testing import toy_pair
from tests.virtual import always, ride


def learnt() -> Experience:
    from edgedecode.scheduler import Scheduler

    experience = Experience()
    ride(Scheduler(free=["free"], models=["model"], experience=experience), tokens=100, free=always, model=always)
    return experience


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    with toy_pair() as pair:
        path = experience_path(pair.manifest, engine="table", version="1", settings=("cpu", 2))
    assert path is not None
    return path


def test_it_comes_back_as_it_was_kept(place: Path) -> None:
    experience = learnt()
    store_experience(place, experience)
    assert load_experience(place).as_dict() == experience.as_dict()
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_engines_versions_and_settings_have_files_of_their_own(place: Path) -> None:
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
def test_damage_is_told_and_begun_afresh(place: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    place.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.notices"):
        assert load_experience(place).as_dict() == Experience().as_dict()
    assert "measured again" in caplog.text
    assert caplog.text.count("\n") == 1


@pytest.mark.parametrize("broken", ['"life_cost": NaN', '"life_cost": -1', '"life_cost": "much"', '"tried": [NaN]'])
def test_numbers_that_cannot_be_are_damage(place: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    store_experience(place, learnt())
    name, _, value = broken.partition(": ")
    text = re.sub(rf"{name}: (\[[^]]*\]|[-.e0-9]+)", f"{name}: {value}", place.read_text(encoding="utf-8"), count=1)
    assert broken in text
    place.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.INFO, logger="edgedecode.notices"):
        assert load_experience(place).as_dict() == Experience().as_dict()
    assert "measured again" in caplog.text


def test_nothing_kept_is_no_damage(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="edgedecode.notices"):
        load_experience(place)
        load_experience(None)
    assert not caplog.text


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    store_experience(tmp_path / "no" / "folder.json", learnt())


def test_a_pair_goes_on_from_what_an_earlier_one_learnt(place: Path) -> None:
    with toy_pair() as pair:
        pair.keep_experience(place)
        with pair.session(SessionOptions(seed=1, ignore_eos=True)) as session:
            session.generate("hello", max_tokens=40)
        known = pair.experience.as_dict()
    with toy_pair() as again:
        again.keep_experience(place)
        assert again.experience.as_dict() == known
