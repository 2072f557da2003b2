"""`eval --equality` on tables whose logits differ by known amounts, and through the verb."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from edgedecode import ContextExceeded, InputError, Pair
from edgedecode.apps import manifest_results
from edgedecode.apps.eval import evaluation
from edgedecode.apps.eval.equality import (
    Comparison,
    EncodedPrompt,
    PromptEquality,
    Setting,
    compare_engines,
    equality_of,
)
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.kernel_noise import Rescore
from edgedecode.errors import CapabilityError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.engine_equality import Equality
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.testing import TableModel, TableRuntime, toy_pair, toy_tables
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.prompts import Prompt
from edgedecode.text.tokenizer import Tokenizer
from edgedecode.typed_json import typed
from tests.small_tokenizers import byte_level

VOCABULARY = 24
PROMPTS = [EncodedPrompt(f"prompt {index}", (index, index + 1, 3)) for index in range(6)]
SETTING = Setting(max_tokens=20, ends=frozenset(), noise_positions=60)
Tables = tuple[FloatArray, ...]


def tables(seed: int = 3) -> Tables:
    return toy_tables(VOCABULARY, seed=seed, scale=2.0)


class Noisy(TableModel):
    """Tables with a kernel noise on their card."""

    def __init__(self, tables: Tables, noise: float | None) -> None:
        super().__init__(tables)
        self.card = replace(self.card, kernel_noise=noise)


def compared(
    first: Tables, second: Tables, *, noise: float | None = 0.0, setting: Setting = SETTING
) -> tuple[Comparison, list[str]]:
    """Compare two tables as the engines a and b; also return the order of opening and closing."""
    steps: list[str] = []

    @contextmanager
    def opened(name: str) -> Iterator[LanguageModel]:
        steps.append(f"open {name}")
        yield Noisy({"a": first, "b": second}[name], noise)
        steps.append(f"close {name}")

    return compare_engines(opened, ("a", "b"), PROMPTS, setting, role="target"), steps


def summed(comparison: Comparison) -> Equality:
    return equality_of(
        comparison.prompts, engines={"a": "a 1", "b": "b 2"}, noise=comparison.noise, prompts_digest="12", max_tokens=20
    )


def nudged(tables: Tables, *, token: int, after: int, amount: float) -> Tables:
    """Return the tables with `amount` added to the logit of `token` after the token `after`."""
    first = tables[0].copy()
    first[after, token] += amount
    return (first, *tables[1:])


def test_equality_holds_for_the_same_tables_without_noise() -> None:
    comparison, steps = compared(tables(), tables())
    found = summed(comparison)
    assert found.equal
    assert (found.tokens, found.hits, found.divergent, found.beyond) == (240, 240, 0, 0)
    assert found.largest_gap == 0
    # b is tried first, and only one engine is open at a time
    assert steps == [f"{what} {name}" for name in "baba" for what in ("open", "close")]


@pytest.mark.parametrize(("noise", "beyond"), [(0.4, 1), (0.6, 0)])
def test_one_changed_weight_is_found_by_its_gap_if_that_is_beyond_the_noise(noise: float, beyond: int) -> None:
    logits = TableModel(tables()).logits_after(PROMPTS[0].tokens)
    ranked = np.argsort(-logits)
    behind = float(logits[ranked[0]] - logits[ranked[1]])
    wrong = nudged(tables(), token=int(ranked[1]), after=3, amount=behind + 0.5)
    first = compared(tables(), wrong, noise=noise)[0].prompts[0]
    assert first.divergent
    assert first.scores["b"].gaps[0] == pytest.approx(0.5, abs=1e-4)
    larger = sum(gap > 0.6 for score in first.scores.values() for gap in score.gaps)
    assert (first.beyond(noise), first.beyond(100.0)) == (beyond + larger, 0)
    found = summed(compared(tables(), wrong)[0])
    assert not found.equal
    assert found.divergent >= 1
    assert found.hits < found.tokens


def of_gaps(*gaps: float, tokens: int = 3200, noise: float = 0.136) -> Equality:
    """Return the equality of `tokens` tokens on 50 prompts, with these gaps in one engine's scores."""
    none = PromptEquality("p", scores={"a": Rescore(tokens // 50, tokens // 50, ())}, divergent=False)
    some = PromptEquality(
        "q", scores={"a": Rescore(tokens // 50, tokens // 50 - len(gaps), gaps)}, divergent=bool(gaps)
    )
    return summed(Comparison((some, *[none] * 49), {"a": noise, "b": 0.0}))


def test_equality_allows_a_near_tie_beyond_the_noise_percentile() -> None:
    """One token in 1,000 may exceed a 99.9th percentile; many more may not, and none by far."""
    one = of_gaps(0.21)
    assert (one.beyond, one.beyond_tokens, one.untied, one.equal) == (1, 1, 0, True)
    assert one.beyond_rate.low <= 0.001 <= one.beyond_rate.high
    assert (one.divergent_rate.count, one.divergent_rate.total) == (1, 50)
    assert of_gaps(*[0.21] * 7).equal
    many = of_gaps(*[0.21] * 12)
    assert many.beyond_rate.low > 0.001
    assert not many.equal
    far = of_gaps(0.7)
    assert (far.beyond_tokens, far.untied, far.equal) == (1, 1, False)


def test_equality_without_noise_allows_no_gap() -> None:
    """Kernels whose rows have the same bits at every width leave no excuse for a gap."""
    assert of_gaps(noise=0.0).equal
    assert not of_gaps(1e-6, noise=0.0).equal
    assert not of_gaps(1e-6, noise=math.nan).equal


def test_equality_of_an_older_version_keeps_its_verdict() -> None:
    for gaps in ((), (0.21,)):
        value = asdict(of_gaps(*gaps))
        del value["beyond_tokens"], value["untied"]
        assert typed(json.loads(json.dumps(value)), Equality, "equality").equal == (not gaps)


def test_compare_engines_refuses_nan_logits() -> None:
    broken = (np.full_like(tables()[0], np.nan), *tables()[1:])
    with pytest.raises(CapabilityError, match="not numbers"):
        compared(tables(), broken, noise=100.0)


def test_equality_with_an_infinite_gap_fails_and_is_valid_json() -> None:
    score = Rescore(positions=3, hits=2, gaps=(math.inf,))
    prompt = PromptEquality("p", scores={"a": score, "b": Rescore(3, 3, ())}, divergent=True)
    found = summed(Comparison((prompt,), {"a": 1.0, "b": 1.0}))
    assert not found.equal
    assert (found.tokens, found.hits, found.beyond, found.untied, found.largest_gap) == (6, 5, 1, 1, None)
    assert typed(json.loads(json.dumps(asdict(found), allow_nan=False)), Equality, "equality") == found


def test_compare_engines_measures_noise_missing_from_the_card() -> None:
    stated, _ = compared(tables(), tables(), noise=0.25)
    assert stated.noise == {"a": 0.25, "b": 0.25}
    measured, _ = compared(tables(), tables(), noise=None)
    assert measured.noise == {"a": 0.0, "b": 0.0}  # tables have no rounding
    doubted, _ = compared(tables(), tables(), noise=0.25, setting=replace(SETTING, trusted_noise=False))
    assert doubted.noise == {"a": 0.0, "b": 0.0}


def test_compare_engines_refuses_prompts_without_room_before_decoding() -> None:
    model = TableModel(tables(), context=30)
    for prompt, error in ((EncodedPrompt("long", (1,) * 15), ContextExceeded), (EncodedPrompt("none", ()), InputError)):
        with pytest.raises(error, match=prompt.name):
            compare_engines(lambda name: nullcontext(model), ("a", "b"), [prompt], SETTING, role="target")
    assert model.passes == []


# -- the verb ------------------------------------------------------------------------------------------------------


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Tables]:
    """Two table engines over a pack with a real manifest; a test may replace an engine's tables."""
    pair = toy_pair(context=512)
    size = pair.tokenizer.size
    engine_tables = {"onnx": toy_tables(size, seed=0, scale=3.0), "llama": toy_tables(size, seed=0, scale=3.0)}
    (tmp_path / MANIFEST_NAME).write_text(manifest_text(pair), encoding="utf-8")

    def load(model: object, *, runtime: str, **options: object) -> Pair:
        runtimes = TableRuntime({"target": engine_tables[runtime], "draft": engine_tables[runtime]}, context=512)
        return Pair(pair.manifest, tmp_path, tokenizer=pair.tokenizer, runtime=runtimes, budget=Budget())

    monkeypatch.setattr(evaluation, "load", load)
    monkeypatch.setattr(evaluation, "Setting", partial(Setting, noise_positions=40))
    return engine_tables


def manifest_text(pair: Pair) -> str:
    """Return the pair's manifest with some listed files and an unknown key."""
    value = json.loads(pair.manifest.to_json())
    names = ["tokenizer.json", "weights.bin", "base.onnx"]
    value["files"] = {name: {"nbytes": 1, "sha256": "00"} for name in names}
    value["models"]["target"]["of_tomorrow"] = [1, 2]
    return json.dumps(value, indent=1) + "\n"


def evaluate(root: Path, *more: str) -> int:
    words = ["eval", "--equality", "-m", str(root), "--limit", "4", "-n", "8"]
    return main([*words, *more])


@pytest.mark.usefixtures("tables_too")
def test_eval_of_equal_engines_exits_with_0_and_saves_the_result(
    engines: dict[str, Tables], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tmp_path, "--json") == 0
    out = capsys.readouterr().out
    value = json.loads(out.splitlines()[-1])
    assert out.splitlines()[-2].startswith("EQUAL: ")
    assert out.count("divergent prompts: 0 of 4, 0% (0 to 60% at 95% confidence)") == 2
    assert value["models"]["target"]["divergent_bounds"] == [0, pytest.approx(1 - 0.025**0.25)]
    kept = Manifest.load(tmp_path)
    for role in ("target", "draft"):
        entry = kept.models[role]
        assert entry.equality.equal
        assert (entry.equality.prompts, entry.equality.max_tokens, entry.equality.beyond) == (4, 8, 0)
        assert value["models"][role]["hits"] == entry.equality.hits == entry.equality.tokens > 0
    assert json.loads((tmp_path / MANIFEST_NAME).read_text())["models"]["target"]["of_tomorrow"] == [1, 2]
    first = (tmp_path / MANIFEST_NAME).read_bytes()
    assert evaluate(tmp_path) == 0
    assert (tmp_path / MANIFEST_NAME).read_bytes() == first  # the result does not depend on the time
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]
    capsys.readouterr()
    assert main(["show", "--full", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "models.target.equality.engines onnx onnxruntime" in shown
    assert f"models.target.equality.hits {value['models']['target']['hits']}" in shown


def test_eval_of_different_engines_exits_with_1_and_names_prompts(
    engines: dict[str, Tables], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines["llama"] = toy_tables(len(engines["llama"][0]), seed=9, scale=3.0)
    assert evaluate(tmp_path, "--role", "draft", "--no-save") == 1
    out = capsys.readouterr().out
    assert "NOT EQUAL: onnx and llama differ by more than kernel noise: draft on 4 of 4 prompts" in out
    assert out.count("beyond the noise: ") == 4
    assert Manifest.load(tmp_path).models["draft"].equality is None


def test_eval_saves_only_the_evaluated_roles(engines: dict[str, Tables], tmp_path: Path) -> None:
    assert evaluate(tmp_path, "--role", "draft") == 0
    kept = Manifest.load(tmp_path)
    assert kept.models["target"].equality is None
    assert kept.models["draft"].equality is not None


def test_eval_that_is_interrupted_leaves_the_pack_unchanged(
    engines: dict[str, Tables], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (tmp_path / MANIFEST_NAME).read_bytes()
    interrupted = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("edgedecode.apps.eval.equality.rescore", interrupted)
    assert evaluate(tmp_path) == 130
    monkeypatch.undo()
    monkeypatch.setattr("edgedecode.pack.pack_lock.os.fsync", interrupted)
    equality = summed(compared(tables(), tables())[0])
    with pytest.raises(KeyboardInterrupt):
        evaluation.save_found(tmp_path, evaluation.Found(equality={"target": equality}))
    assert (tmp_path / MANIFEST_NAME).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_eval_writes_the_bundled_pack_only_with_save(
    engines: dict[str, Tables], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_results, "BUNDLED_PACK", tmp_path)
    assert evaluate(tmp_path, "--role", "target") == 0
    assert Manifest.load(tmp_path).models["target"].equality is None
    assert evaluate(tmp_path, "--role", "target", "--save") == 0
    assert Manifest.load(tmp_path).models["target"].equality is not None


def test_manifest_refuses_impossible_equality_counts(engines: dict[str, Tables], tmp_path: Path) -> None:
    assert evaluate(tmp_path) == 0
    value = json.loads((tmp_path / MANIFEST_NAME).read_text())
    value["models"]["target"]["equality"]["hits"] = 10**6
    with pytest.raises(ManifestError, match=r"target\.equality: it counts more tokens"):
        Manifest.from_json(value)


def test_special_tokens_in_a_prompt_are_text() -> None:
    tokenizer = Tokenizer(
        byte_level(), chat_template=ChatTemplate("{% for m in messages %}{{ m.content + '<|end|>' }}{% endfor %}")
    )
    end = tokenizer.encode("<|end|>")
    ids = evaluation._encode(Prompt("chat", (), ("a <|end|> b",)), tokenizer).tokens
    assert len(end) == 1
    assert [place for place, one in enumerate(ids) if one == end[0]] == [len(ids) - 1]
    assert tokenizer.decode(ids, skip_special=False) == "a <|end|> b<|end|>"
