"""Sessions of hybrids on our own kernels: drafts change no token, and little of a changed chat is read again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgedecode
from edgedecode import Pair, SamplingOptions, SessionDetails, SessionOptions
from edgedecode.apps.serve.verify.states import Held, Lost, Row, VerifyStates
from edgedecode.cli import main
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.runtimes.onnx.recurrence import SLOTS
from edgedecode.runtimes.remote.remote_model import RemoteState
from tests.contract.conftest import GgufOpener
from tests.contract.gguf_pack import write_pack
from tests.contract.test_recurrent import counting

pytestmark = pytest.mark.skipif(tried() is None, reason="no kernels for this processor")
GREEDY, SAMPLED = SamplingOptions(temperature=0.0), SamplingOptions(temperature=0.7, top_k=3)


@pytest.fixture(scope="module")
def root(gguf_opener: GgufOpener, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("hybrid") / "pack", gguf_opener, architecture="lfm2")


@pytest.fixture(scope="module")
def pair(root: Path) -> Iterator[Pair]:
    with edgedecode.load(root, runtime="onnx", threads=1) as pair:
        yield pair


def options(drafter: str, sampling: SamplingOptions, *, draft_max: int | None = None, seed: int = 7) -> SessionOptions:
    details = SessionDetails(ignore_eos=True)
    return SessionOptions(
        drafter=drafter, sampling=sampling, draft_max=draft_max, seed=seed, context=480, details=details
    )


def test_drafts_of_every_kind_give_the_text_of_plain_decoding(pair: Pair) -> None:
    """Those of the draft model too, which is a hybrid itself."""
    assert pair.target.card.row_invariant
    assert pair.target.card.tree_rows == SLOTS
    texts, accepted = dict[str, object](), dict[str, int]()
    for drafter in ("none", "suffix", "recycle", "model", "tree"):
        answers = []
        for sampling in (GREEDY, SAMPLED):
            with pair.session(options(drafter, sampling, draft_max=None if drafter == "none" else 6)) as session:
                answers += [session.generate(f"hello {number}", max_tokens=90) for number in range(3)]
        texts[drafter] = [answer.tokens for answer in answers]
        accepted[drafter] = sum(answer.stats.accepted for answer in answers)
    assert all(text == texts["none"] for text in texts.values())
    print(accepted)
    assert all(count > 0 for drafter, count in accepted.items() if drafter != "none")


def test_answers_at_once_are_those_alone(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rows do not fit the slots together, so that they take turns and read the prompt's end again."""
    read = counting(monkeypatch, "forward")
    with pair.session(options("none", SAMPLED)) as session:
        chunks = [*session.samples("hello there", 3, max_tokens=80)]
        assert sum(read) < 3 * (80 + 2 * SLOTS)
        together = ["".join(chunk.text for chunk in chunks if chunk.number == number) for number in range(3)]
    alone = []
    for seed in (7, 8, 9):
        with pair.session(options("none", SAMPLED, seed=seed)) as session:
            alone.append(session.generate("hello there", max_tokens=80).text)
    assert len(set(together)) == 3
    assert together == alone


def test_a_changed_chat_reads_little_again(pair: Pair) -> None:
    """A message that is asked again, or in other words, begins at the state before it; its answer is a fresh one's."""
    with pair.session(options("recycle", GREEDY, draft_max=4)) as session:
        session.generate("a long question " * 16, max_tokens=30)
        kept = session.messages
        first = session.generate("what is it?", max_tokens=30)
        session.reset(kept)
        again = session.generate("what is it?", max_tokens=30)
        session.reset(kept)
        other = session.generate("which one is it, then?", max_tokens=30)
    assert again.tokens == first.tokens
    for answer in (again, other):
        assert answer.stats.prompt_tokens - answer.stats.cached_tokens < 2 * SLOTS < answer.stats.prompt_tokens // 2
    with pair.session(options("none", GREEDY), messages=kept) as session:
        assert session.generate("which one is it, then?", max_tokens=30).tokens == other.tokens


def test_a_stop_string_and_a_turn_after_it(pair: Pair) -> None:
    """The tokens behind a stop string are dropped, which states may have: the text goes on from an earlier one."""
    with pair.session(options("none", GREEDY)) as session:
        whole = session.generate("hello", max_tokens=60).text
        stop = whole[30:33]
        assert whole.index(stop) > 0
    texts = []
    for drafter in ("none", "recycle"):
        with pair.session(options(drafter, GREEDY, draft_max=None if drafter == "none" else 8)) as session:
            texts.append([session.generate(word, max_tokens=60, stop=[stop]).text for word in ("hello", "again")])
    assert texts[0] == texts[1]
    assert texts[0][0] == whole[: whole.index(stop)]


def test_drafts_of_devices_are_verified_after_the_positions_they_name(pair: Pair) -> None:
    """Layers that have gone back further than a request asked would read its tokens in the wrong places."""
    states, tokens = VerifyStates(pair), np.random.default_rng(1).integers(3, 99, 260).tolist()
    held, fresh = (states.open(capacity=400, key=0) for _ in range(2))

    def rows(used: Held, keep: int, stop: int) -> list[Row]:
        return states.verified(used, tokens[keep:stop], keep=keep, rows=2, top=3, closing=lambda: None)

    rows(held, 0, 200)
    assert rows(held, 190, 205) == rows(fresh, 0, 205)
    with pytest.raises(Lost, match="cannot go on after 60 positions"):
        rows(held, 60, 180)
    held.state.close()
    fresh.state.close()


def test_a_device_alone_reads_again_what_its_layers_dropped(pair: Pair) -> None:
    tokens, found = np.random.default_rng(1).integers(3, 99, 260).tolist(), []
    for before in (200, 0):  # a text of which 60 tokens are left in the next one, or none
        lease = pair.shared.budget.reserve("tokens", 0)
        state = RemoteState(400, lease, pair.target.new_state(400, rows=2))
        if before:
            state.tokens, state.rows = tokens[: before - 1], tokens[before - 1 : before]
            state.read_alone(pair.target, 1)
            state.keep([0])
            state.crop(60)
        state.tokens, state.rows = tokens[:60] + tokens[200:258], tokens[258:]
        found.append(state.read_alone(pair.target, 2).copy())
        state.close()
    assert np.array_equal(*found)


def test_commands_run_hybrids(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-m", str(root), "-c", "200"]) == 0
    assert "Smallest budget" in capsys.readouterr().out
    for more in ([], ["--kv-type", "int8"]):
        assert main(["generate", "-m", str(root), "-p", "hi", "-n", "8", "--drafter", "recycle", *more]) == 0
