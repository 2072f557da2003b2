"""Past outputs on disk: truncated, unexpected, unreadable and full files lose only their own records."""

from __future__ import annotations

import logging
import os
import stat
from array import array
from pathlib import Path

import pytest

from edgedecode.drafters.past import PastOutputs
from edgedecode.drafters.remembered import OutputFile
from edgedecode.drafters.suffix import SuffixSource
from edgedecode.sampling.sampler import Noise
from tests.toys import draft_setting

OUTPUTS = [array("i", range(start, start + 12)) for start in (0, 20, 40)]
VOCABULARY = 100


def written(path: Path) -> OutputFile:
    file = OutputFile(path)
    for output in OUTPUTS:
        file.append(output)
    return file


def load(path: Path, tokens: int = 1000) -> list[array[int]]:
    return OutputFile(path).load(tokens, vocabulary_size=VOCABULARY)


def test_output_file_reads_what_was_appended(tmp_path: Path) -> None:
    written(tmp_path / "a")
    assert load(tmp_path / "a") == OUTPUTS
    assert load(tmp_path / "a", tokens=30) == OUTPUTS[1:]  # the most recent that fit
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o600
    assert load(tmp_path / "nothing") == []


@pytest.mark.parametrize("lost", range(1, 60, 7))
def test_output_file_keeps_the_intact_records_of_a_truncated_file(
    lost: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    written(path)
    path.write_bytes(path.read_bytes()[:-lost])
    assert load(path) == OUTPUTS[: 2 if lost < 56 else 1]
    assert "damaged" in caplog.text
    caplog.clear()
    OutputFile(path).append(OUTPUTS[2])  # after the repair the file is complete
    assert load(path)[-1] == OUTPUTS[2]
    assert caplog.text == ""


@pytest.mark.parametrize("place", [0, 30, 40, 100])
def test_output_file_detects_a_flipped_bit(place: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a"
    written(path)
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(bytes(data))
    found = load(path)
    assert found == OUTPUTS[: len(found)]
    assert len(found) < 3
    assert "damaged or of another version" in caplog.text


def test_output_file_replaces_an_unexpected_file_with_a_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    path.write_text("something else")
    assert load(path) == []
    assert "another version" in caplog.text
    OutputFile(path).append(OUTPUTS[0])
    assert load(path) == OUTPUTS[:1]


def test_output_file_skips_ids_of_a_larger_vocabulary(tmp_path: Path) -> None:
    file = written(tmp_path / "a")
    file.append(array("i", [5, VOCABULARY]))
    assert load(tmp_path / "a") == OUTPUTS


def test_output_file_keeps_the_most_recent_when_full(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = OutputFile(path, limit_nbytes=1000)
    for number in range(100):
        file.append(array("i", [number] * 12))
        assert path.stat().st_size <= 1100
    found = load(path, tokens=10**6)
    assert [output[0] for output in found] == list(range(100 - len(found), 100))
    assert len(found) > 5
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_output_file_reports_a_disk_that_refuses_writes_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = OutputFile(tmp_path / "no folder" / "a")
    past = PastOutputs()
    past.remember(file, vocabulary_size=VOCABULARY)
    past.add(OUTPUTS[0])
    past.add(OUTPUTS[1])
    assert past.version == 2
    assert caplog.text.count("in memory only") == 1


def test_output_file_reports_a_failed_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    file = OutputFile(tmp_path / "a", limit_nbytes=100)
    monkeypatch.setattr(os, "replace", full)
    for output in OUTPUTS * 3:
        file.append(output)
    assert caplog.text.count("No space left on device: past outputs are kept in memory only") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
    assert load(tmp_path / "a") == OUTPUTS[:2]


def test_output_file_with_a_folder_in_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    assert load(tmp_path / "a") == []
    assert "in memory only" in caplog.text


def test_output_file_supplies_drafts_to_a_later_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.test_suffix_drafter import ANSWER, answers

    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path))
    for remember, known in ((False, False), (True, False), (True, True), (False, False)):
        source = SuffixSource()
        made = source.open(draft_setting(VOCABULARY, remember=remember))
        made.begin([5])
        assert (made.propose([5, 20, 21], 2, Noise(0)).tokens == (22, 23)) == known
        answers(made, [5], *ANSWER)  # type: ignore[arg-type]
        made.close()
        source.close()
    other = SuffixSource().open(draft_setting(VOCABULARY, remember=True, tokenizer_digest="another"))
    other.begin([5])
    assert other.propose([5, 20, 21], 2, Noise(0)).tokens == ()


def test_output_file_without_a_cache_folder_gives_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        made = SuffixSource().open(draft_setting(VOCABULARY, remember=True))
    assert "cannot be written" in caplog.text
    made.begin([1])
    assert made.propose([1, 2, 3, 1, 2], 1, Noise(0)).tokens == (3,)
