"""Memory for encoding texts: bounded before encoding, and planned with the session or leased."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, normalizers

from edgedecode.errors import BudgetExceeded, ContextExceeded
from edgedecode.memory.budget import Budget
from edgedecode.memory.limit import Limit
from edgedecode.memory.process_memory import peak_nbytes
from edgedecode.options import WhenFull
from edgedecode.text import encoder as encoding
from edgedecode.text.encoder import Encoder
from edgedecode.text.messages import Message
from edgedecode.text.tokenizer import Tokenizer
from tests.shared_paths import SHARED, needs_shared
from tests.small_tokenizers import byte_fallback, byte_level
from tests.toys import ascii_pair, session_options

TEXTS = {
    "digits": "7",
    "emoji": "\U0001f600",
    "~é": "~é",
    "lines": "\n",
    "words": "the quick brown fox, ",
    "spaces": " ",
}

PEAK_OF_ENCODING = """
import sys
from edgedecode.text.encoder import BYTE_NBYTES, TOKEN_NBYTES
from edgedecode.memory.process_memory import peak_nbytes, resident_nbytes
from edgedecode.text.tokenizer import Tokenizer
from pathlib import Path
from tests.unit.test_encoding import TEXTS
tokenizer = Tokenizer.from_file(Path(sys.argv[1]))
text = TEXTS[sys.argv[2]] * (600_000 // len(TEXTS[sys.argv[2]].encode()))
before = resident_nbytes()
if peak_nbytes() > before + 20_000_000:
    print("skip: reading the file took more")
    sys.exit()
tokens = len(tokenizer.encode(text))
planned = BYTE_NBYTES * len(tokenizer.normalized(text).encode()) + TOKEN_NBYTES * tokens
assert peak_nbytes() - before <= planned, (peak_nbytes() - before, planned, tokens)
"""
PEAK_OF_REQUESTS = """
import sys
import edgedecode
from edgedecode.memory.process_memory import peak_nbytes
with edgedecode.load(memory=int(sys.argv[1]), runtime="onnx", threads=1) as pair:
    for text in ("\U0001f600" * 262_144, "~é" * 87_000, "\\n" * 262_144, "~é" * 2_000_000, "7" * 30_000, " " * 60_000):
        for answer in ("stream", "complete"):
            with pair.session() as session:
                try:
                    list(getattr(session, answer)(text, max_tokens=2))
                except (edgedecode.ContextExceeded, edgedecode.BudgetExceeded):
                    pass
                assert session.messages == () or answer == "stream"
    history = [edgedecode.Message("user", "hello " * 700_000)]
    for start, full in (("at once", "stop"), ("by reset", "stop"), ("at once", "drop"), ("by reset", "drop")):
        options = edgedecode.SessionOptions(details=edgedecode.SessionDetails(when_full=edgedecode.WhenFull(full)))
        with pair.session(options, messages=history if start == "at once" else ()) as session:
            if start == "by reset":
                session.reset(history)
            try:
                session.generate("and now?", max_tokens=2)
                assert full == "drop", "4 MB in a context of 2,048 tokens"
                assert session.stats.dropped_turns == 1
            except (edgedecode.ContextExceeded, edgedecode.BudgetExceeded):
                assert full == "stop"
    with pair.session() as session:
        assert session.generate("hello there", max_tokens=4).text
    print(peak_nbytes())
"""


def child(code: str, *words: str) -> str:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=240, cwd=root
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.memory
@pytest.mark.skipif(peak_nbytes() is None, reason="this system does not report peak memory")
def test_budget_holds_for_any_prompt_and_history() -> None:
    """6 MB are left beyond the plan. Unbounded, the emoji took 240 MB and a history of 4 MB took 950 MB."""
    pytest.importorskip("onnxruntime")
    code = "import edgedecode\nwith edgedecode.load(runtime='onnx', threads=1) as pair, pair.session():\n"
    limit = int(child(code + "    print(pair.budget.used_nbytes)")) + 6_000_000
    assert int(child(PEAK_OF_REQUESTS, str(limit))) <= limit


@needs_shared
@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
@pytest.mark.parametrize(("name", "text"), [("smollm2", "digits"), ("phi3", "emoji"), ("phi3", "spaces")])
def test_encode_needs_no_more_memory_than_planned(name: str, text: str) -> None:
    if (message := child(PEAK_OF_ENCODING, str(SHARED / "tokenizers" / name / "tokenizer.json"), text)).startswith(
        "skip"
    ):
        pytest.skip(message)


@pytest.mark.parametrize("build", [byte_level, byte_fallback])
def test_encode_equals_the_tokenizer_for_texts_within_the_context(
    build: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the text is counted in pieces of one character."""
    tokenizer = Tokenizer(build())  # type: ignore[operator]
    monkeypatch.setattr(encoding, "PIECE_CHARS", 1)
    encoder = Encoder(tokenizer, capacity=400, longest=400, budget=Budget())
    encoder._planned = 0  # with nothing planned, every text is counted in pieces
    for text in (
        *TEXTS.values(),
        "the quick brown fox jumps",
        "über naïve café ab a",
        "two é words<tool>",
        "",
        "a" * 99,
    ):
        assert encoder.encode(text) == tokenizer.encode(text)
        assert encoder.encode(text, add_special=True) == tokenizer.encode(text, add_special=True)
    encoder.close()


def test_encode_refuses_a_long_text_after_a_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, longest = Tokenizer(byte_level()), 0
    encode = Tokenizer.encode

    def watched(self: Tokenizer, text: str, **how: bool) -> list[int]:
        nonlocal longest
        longest = max(longest, len(text))
        return encode(self, text, **how)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    encoder = Encoder(tokenizer, capacity=100, longest=100, budget=Budget())
    with pytest.raises(ContextExceeded, match=r"^prompt is too long: about 4000 tokens > 99 maximum"):
        encoder.encode("z1" * 2000)
    assert 0 < longest <= encoder._piece
    with pytest.raises(ContextExceeded, match=r"bytes of text, at least \d+ tokens > 99 maximum"):
        encoder.encode("z" * 100_000)
    with pytest.raises(ContextExceeded, match="bytes of text"):
        encoder.render([Message("user", "z" * 50_000), Message("assistant", "z" * 50_000)])


@pytest.mark.parametrize("longest", [100, 2048, 4096])
def test_encode_advises_a_longer_context_only_if_the_model_allows_one_that_is_enough(longest: int) -> None:
    encoder = Encoder(Tokenizer(byte_level()), capacity=100, longest=longest, budget=Budget())
    remedy = "raise --ctx-size (up to 4096)" if longest > 4000 else "use a model with a longer context"
    with pytest.raises(ContextExceeded, match=f": shorten it, or {re.escape(remedy)}$"):
        encoder.encode("z1" * 2000)


def test_encode_leases_memory_beyond_the_plan_first() -> None:
    inner = tokenizers.Tokenizer(models.BPE({"a": 0, " ": 1, " " * 64: 2}, [], unk_token="a", fuse_unk=True))
    inner.add_tokens([" " * 64])
    tokenizer, budget = Tokenizer(inner), Budget()
    encoder = Encoder(tokenizer, capacity=600, longest=600, budget=budget)
    planned = budget.used_nbytes
    text = " " * (64 * 500)
    assert len(encoder.encode(text)) == 500
    budget.limit = Limit(planned + 1000)
    with pytest.raises(BudgetExceeded, match="are needed for encoding a prompt"):
        encoder.encode(text)
    assert budget.used_nbytes == planned
    assert encoder.encode("a" * 10) == tokenizer.encode("a" * 10)
    encoder.close()
    assert budget.leases == ()


def test_encode_counts_a_normalizer_that_lengthens_texts() -> None:
    inner = byte_level()
    inner.normalizer = normalizers.Replace("l", "l" * 32)
    tokenizer = Tokenizer(inner)
    assert tokenizer.growth == 32
    encoder = Encoder(tokenizer, capacity=100, longest=100, budget=Budget())
    with pytest.raises(ContextExceeded, match="tokens"):
        encoder.encode("l" * 4000)
    assert encoder.encode("lo") == tokenizer.encode("lo")


@pytest.mark.parametrize("longer", [{"messages": True}, {"reset": True}, {"complete": True}], ids=str)
def test_session_checks_the_size_of_every_text_before_encoding(
    longer: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 5_000_000
    history = [Message("user", text), Message("assistant", "yes")]
    with ascii_pair() as pair:
        monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: pytest.fail("the text was encoded"))
        monkeypatch.setattr(Tokenizer, "render", lambda *_, **__: pytest.fail("the text was rendered"))
        stops = session_options(drafter="none", when_full=WhenFull.STOP)
        session = pair.session(stops, messages=history if "messages" in longer else ())
        if "reset" in longer:
            session.reset(history)
        answer, prompt = (session.complete, text) if "complete" in longer else (session.stream, "and now?")
        with pytest.raises(ContextExceeded, match="bytes of text"):
            answer(prompt)
