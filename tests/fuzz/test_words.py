"""Conversations in files and over standard input, and command lines."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from .hostile import INTEGERS, TEXTS, Edit, Repeated, Splice, edited, edits
from .packs import write_pack
from .running import BUDGET_NBYTES, UNBUDGETED_NBYTES, Fuzz, fuzzed

CONVERSATION = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "pears"},
    ]
}
LINES = st.one_of(
    st.sampled_from([b"/load saved.json", b"/load .", b"/load /dev/zero", b"/load missing", b"/clear", b"/stats"]),
    st.sampled_from([b"hello", b"/help", b"/bye", b"/set", b"//", b"/", b"\xff\xfe", b"", b"\x1b[2J"]),
    st.builds(lambda text: b"/system " + text.encode("utf-8", "surrogatepass"), TEXTS),
    st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"/", b"")),
    st.builds(Repeated, st.sampled_from(["x", "~é", "[", "🦙"]), st.just(20_000)),
)


def _bytes(line: bytes | Repeated) -> bytes:
    return line if isinstance(line, bytes) else line.text.encode()


@fuzzed("transcripts")
@given(changes=edits(CONVERSATION), lines=st.lists(LINES, max_size=3))
def test_chat_with_a_hostile_conversation_ends_in_one_line_or_an_answer(
    fuzz: Fuzz, changes: Sequence[Edit | Splice], lines: Sequence[bytes | Repeated]
) -> None:
    pack = write_pack(fuzz.fresh() / "pack")
    (fuzz.place / "saved.json").write_bytes(edited(CONVERSATION, changes))
    typed = b"\n".join([b"/load saved.json", *map(_bytes, lines), b"hello"])
    words = ("chat", "-m", str(pack), "-n", "2", "-t", "1", "--memory", "160MB")
    fuzz.check(*words, stdin=typed, limit=BUDGET_NBYTES)


FLAGS = {
    "generate": ("--raw", "--ignore-eos", "--stats", "--json", "--verify", "--reproducible"),
    "chat": ("--verify", "--reproducible"),
    "show": ("--verify", "--json"),
    "cache": ("show", "--json", "clear", "--costs"),
    "import": ("--copy", "--json"),
    "bench": ("--quick",),
    "devices": ("--help",),
    "export": ("--dry-run", "--no-cache"),
    "eval": ("--equality",),
    "trim": ("--remove", "--json"),
}
_SESSION = (
    *("-m", "--runtime", "--provider", "-t", "--memory", "-c", "--kv-type", "--drafter", "--draft-max", "--rule"),
    *(
        *("--adapter", "--temp", "--top-k", "--top-p", "--min-p", "--repeat-penalty", "--seed", "--system", "-n"),
        "--color",
    ),
)
OPTIONS = {
    "generate": ("-p", "--file", "--stop", *_SESSION),
    "chat": _SESSION,
    "import": ("--target", "--onnx", "--draft", "--draft-onnx", "--name", "--license"),
    "export": ("--target", "--draft", "--bits", "--name", "--license", "--noise-positions"),
}
NEEDED = {
    "generate": ("-p", "hello", "-n", "2", "-t", "1", "-m", "pack", "--memory", "160MB"),
    "chat": ("-n", "2", "-t", "1", "-m", "pack", "--memory", "160MB"),
    "show": ("pack",),
    "import": ("--out", "made"),
}
WORDS = st.one_of(
    st.sampled_from(["-", "--", "", "pack", ".", "..", "/dev/null", "/dev/zero", "saved.json", "a=b", "=", "@file"]),
    st.sampled_from(["0", "-1", "1e30", "nan", "inf", "1_000", "٣", "0x10", "1.5", " 1", "9" * 5000, "160MB", "1B"]),
    st.sampled_from(["onnx", "llama", "auto", "cpu", "cuda", "model", "suffix", "none", "int8", "match", "ratio"]),
    INTEGERS.map(str),
    TEXTS,
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    verb = draw(st.sampled_from([*("generate", "chat") * 3, *FLAGS, "", "no-such-verb", "--version"]))
    words = list(NEEDED.get(verb, ()))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            words += [draw(st.sampled_from(FLAGS.get(verb, ("--help",))))]
        else:
            words += [draw(st.sampled_from(OPTIONS.get(verb, ("--json",)))), draw(WORDS)]
    if verb in ("bench", "eval", "trim", "export"):  # these take minutes where nothing is wrong
        words += ["--no-such-option"]
    return [verb, *words]


@fuzzed("command lines")
@given(words=command_lines())
def test_command_line_of_random_words_ends_in_one_line_or_an_answer(fuzz: Fuzz, words: Sequence[str]) -> None:
    write_pack(fuzz.fresh() / "pack")
    (fuzz.place / "saved.json").write_bytes(edited(CONVERSATION, ()))
    safe = [word.replace("\0", "") for word in words]  # the system cannot pass null characters
    limit = BUDGET_NBYTES if words[-2:] == ["--memory", "160MB"] else UNBUDGETED_NBYTES
    fuzz.check(*safe, stdin=b"hello\n", limit=limit, makes="made")
