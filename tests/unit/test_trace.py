"""Traces: replay gives exactly the recorded plans, and only with the pack of the recording."""

from __future__ import annotations

import errno
import json
from io import BytesIO
from pathlib import Path

import pytest

from edgedecode import SessionOptions
from edgedecode.errors import InputError
from edgedecode.pack.integrity import pack_digest
from edgedecode.schedule.experience import Experience
from edgedecode.schedule.trace import FORMAT, Recorder, replay
from edgedecode.testing import toy_pair
from edgedecode.user_notices import NOTICES

pytestmark = pytest.mark.usefixtures("asked_every_round")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    with toy_pair(draft_noise=0.2) as pair:
        with pair.session(SessionOptions(seed=3, ignore_eos=True)) as session:
            session.generate("text from before the trace began", max_tokens=60)
        with pair.session(SessionOptions(seed=1, ignore_eos=True, trace=path)) as session:
            for prompt in ("hello", "and again, hello hello hello"):
                session.generate(prompt, max_tokens=80)
    return path


def test_replay_repeats_every_plan_of_a_recorded_session(trace: Path) -> None:
    rounds = list(replay(trace))
    assert len(rounds) > 4
    assert [each.plan for each in rounds] == [each.recorded for each in rounds]
    assert any(each.plan.draft_max for each in rounds)


def test_trace_header_records_the_schedulers_knowledge(trace: Path) -> None:
    lines = trace.read_text(encoding="utf-8").splitlines()
    head = json.loads(lines[0])
    assert head["experience"]["tables"]
    head["experience"] = Experience().as_dict()
    trace.write_text("\n".join([json.dumps(head), *lines[1:]]), encoding="utf-8")
    assert [each.plan for each in replay(trace)] != [each.recorded for each in replay(trace)]


def test_trace_contains_no_text(trace: Path) -> None:
    assert "hello" not in trace.read_text(encoding="utf-8")


def test_replay_refuses_the_trace_of_another_pack(trace: Path) -> None:
    with toy_pair() as pair:
        assert list(replay(trace, pack=pack_digest(pair.manifest)))
    with pytest.raises(InputError, match="recorded with another pack"):
        list(replay(trace, pack="0" * 64))


@pytest.mark.parametrize(
    ("line", "content", "message"),
    [
        (0, "nonsense", "first line"),
        (0, "{}", "first line"),
        (0, 9, "format 9"),
        (3, "{}", "line 4"),
        (3, "nonsense", "line 4"),
    ],
)
def test_replay_refuses_an_invalid_trace_with_its_line_number(
    trace: Path, line: int, content: str | int, message: str
) -> None:
    lines = trace.read_text(encoding="utf-8").splitlines()
    lines[line] = content if isinstance(content, str) else lines[line].replace(f":{FORMAT},", f":{content},", 1)
    trace.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        list(replay(trace))


def test_trace_that_cannot_be_written_further_ends_with_one_notice_and_the_answer_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(BytesIO):
        """A file on a disk that has filled up."""

        def write(self, line: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "trace.jsonl"
    with toy_pair(draft_noise=0.2) as pair:
        texts = list[str]()
        for trace in (None, path):
            with pair.session(SessionOptions(seed=1, ignore_eos=True, trace=trace)) as session:
                texts.append(session.generate("hello", max_tokens=40).text)
                recorder = session._drafts.drafting.policy if session._drafts.drafting else None
                if isinstance(recorder, Recorder):
                    assert recorder._stream is not None
                    recorder._stream.close()
                    recorder._stream = Full()
                with caplog.at_level("INFO", logger=NOTICES):
                    texts.append(session.generate("and again", max_tokens=200).text)
        notices = [record.getMessage() for record in caplog.records if str(path) in record.getMessage()]
    assert texts[:2] == texts[2:]
    assert notices == [f"the trace {path} ends here, it cannot be written: No space left on device"]
    assert len(list(replay(path))) > 1
    assert pair.budget.used_nbytes == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device")
def test_trace_on_a_full_disk_is_refused_by_name() -> None:
    with toy_pair() as pair:
        pair.session().close()
        used = pair.budget.used_nbytes
        with pytest.raises(InputError, match="the trace /dev/full cannot be written: No space left on device"):
            pair.session(SessionOptions(trace=Path("/dev/full")))
        assert pair.budget.used_nbytes == used


def test_trace_that_is_impossible_is_refused(tmp_path: Path) -> None:
    with toy_pair() as pair:
        pair.session().close()  # the data that drafters share stays with the pair
        used = pair.budget.used_nbytes
        for options in (
            SessionOptions(trace=tmp_path / "t", draft_max=2),
            SessionOptions(trace=tmp_path / "t", drafter="none"),
            SessionOptions(trace=tmp_path / "no" / "t"),
        ):
            with pytest.raises(InputError, match="trace"):
                pair.session(options)
        assert pair.budget.used_nbytes == used
    with pytest.raises(InputError, match="cannot be read"):
        list(replay(tmp_path / "absent"))
