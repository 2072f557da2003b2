"""Pairs of GGUF files whose tokenizers differ: by text, by a map of ids, or refused in one line."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import normalizers

import edgedecode
from edgedecode import CapabilityError, EdgeDecodeError, SamplingOptions, SessionOptions
from edgedecode.cli import main
from edgedecode.decoding.verify import Rule
from edgedecode.drafters.foreign_model import MappedModel
from edgedecode.drafters.text_drafter import TextModel
from edgedecode.options import SwitchOptions
from tests.small_tokenizers import byte_fallback, byte_level
from tests.toys import session_options

from .files import File, write_file

PROMPT = "the quick 世界 🦙 fox <|end|> <s> two é words <tool>"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    one = write_file(tmp_path / "one.gguf", byte_level(), File())
    return one, write_file(tmp_path / "other.gguf", byte_fallback(), File(layers=1, eos="<s>"))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_by_text_change_nothing(files: tuple[Path, Path], turned: bool, temperature: float) -> None:
    target, draft = reversed(files) if turned else files
    sampling = SamplingOptions(temperature=temperature)
    with edgedecode.load(target, draft=draft, runtime="onnx") as pair:
        proposed = []

        def answer(drafter: str, length: int = 0) -> tuple[int, ...]:
            options = SessionOptions(drafter=drafter, draft_max=length or None, sampling=sampling, seed=3)
            with pair.session(options) as session:
                done = [session.generate(prompt, max_tokens=40) for prompt in (PROMPT, "and a second one")]
                proposed.extend(each.stats.proposed for each in done)
                return session.tokens

        plain = answer("none")
        assert all(answer("model", length) == plain for length in (1, 4, 16))
        assert sum(proposed) > 10
        assert isinstance(pair.draft, TextModel)
        leased = {lease.name: lease.nbytes for lease in pair.budget.leases}
        assert leased["tokenizer:draft"] > 0
        assert pair.shared.footprint is not None
        plan = pair.shared.footprint.fit(SessionOptions(drafter="model"), None)
        assert leased["tokenizer:draft"] == dict(plan.holders)["tokenizer:draft"]


def more_tokens() -> tokenizers.Tokenizer:
    inner = byte_level()
    inner.add_tokens(["<more>"])
    return inner


def test_nearly_the_same_tokens_are_mapped(tmp_path: Path) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level(), File())
    draft = write_file(tmp_path / "b.gguf", more_tokens(), File())
    for one, other in ((target, draft), (draft, target)):
        with edgedecode.load(one, draft=other, runtime="onnx") as pair:
            for temperature in (0.0, 0.8):
                sampling = SamplingOptions(temperature=temperature)
                done = []
                for drafter, length in (("none", 0), ("model", 4), ("tree", 4)):
                    options = SessionOptions(drafter=drafter, draft_max=length, sampling=sampling, seed=1)
                    with pair.session(options) as session:
                        done.append(session.generate(PROMPT, max_tokens=40))
                assert done[0].tokens == done[1].tokens == done[2].tokens
                assert done[1].stats.accepted > 0.9 * done[1].stats.proposed > 0  # the weights are the same
            assert isinstance(pair.draft, MappedModel)


def test_a_tokenizer_that_changes_text_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "lower").mkdir()
    draft = write_file(tmp_path / "lower/b.gguf", byte_fallback(), File(eos="<s>"))
    lower = byte_fallback()
    assert lower.normalizer is not None
    lower.normalizer = normalizers.Sequence([normalizers.Lowercase(), lower.normalizer])
    lower.save(str(draft.with_name("tokenizer.json")))
    with pytest.raises(
        EdgeDecodeError, match=r"the draft's tokenizer changes text \('Zwölf' becomes 'zwölf'\)"
    ) as found:
        edgedecode.load(files[0], draft=draft)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (session_options(drafter="model", draft_max=4, rule=Rule.RATIO), "use the match rule"),
        (session_options(drafter="tree", draft_max=4), "use --drafter model"),
        (session_options(switch=SwitchOptions(threshold=1.0)), "--drafter model"),
    ],
)
def test_what_needs_the_same_tokens_is_refused(files: tuple[Path, Path], options: SessionOptions, message: str) -> None:
    with (
        edgedecode.load(files[0], draft=files[1], runtime="onnx") as pair,
        pytest.raises(CapabilityError, match=message),
    ):
        pair.session(options)


def test_verbs_that_compare_both_models_tokens_refuse(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = str(tmp_path / "pack")
    assert main(["import", "--target", str(files[0]), "--draft", str(files[1]), "--out", pack]) == 0
    prompts = tmp_path / "tasks.jsonl"
    prompts.write_text('{"question": "one", "answer": "two"}\n' * 40)
    package = ["package", pack, "--target", "android-llamacpp", "--out", str(tmp_path / "bundle")]
    calibrate = ["calibrate", pack, "--prompts", str(prompts)]
    for words in (["trim", pack], calibrate, ["eval", pack, "--equality"], package):
        capsys.readouterr()
        assert main(words) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "has a tokenizer of its own" in error
