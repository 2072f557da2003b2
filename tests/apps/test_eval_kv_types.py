"""`eval --kv-types` on tables, and through the verb on the bundled pack with each installed engine."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgedecode import load
from edgedecode.apps.eval.equality import EncodedPrompt
from edgedecode.apps.eval.kv_types import (
    KvQuality,
    TextScores,
    compare_types,
    quality_of,
    ratio_bounds,
    refused_types,
    scoring_nbytes,
    types_to_compare,
)
from edgedecode.cli import main
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.text_scores import LIKELY, PIECE, ScoredText, Scores, score_rows
from edgedecode.errors import CapabilityError
from edgedecode.pack.manifest import Manifest
from edgedecode.testing import TableModel, toy_tables
from tests.apps.packs import change_manifest

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
PROMPTS = [EncodedPrompt(f"prompt {index}", (index, index + 1, 3)) for index in range(6)]
SEEDS = {"float32": 3, "float16": 3, "int8": 9}


def compared(*kv_types: str) -> tuple[tuple[KvQuality, ...], list[str]]:
    """Compare tables, with another model's for int8; also return the types in the order opened."""
    opened: list[str] = []

    @contextmanager
    def open_model(kv_type: str) -> Iterator[LanguageModel]:
        opened.append(kv_type)
        model = TableModel(toy_tables(24, seed=SEEDS[kv_type]))
        model.card = replace(model.card, kv_type=kv_type, kv_nbytes=8)
        yield model

    return compare_types(open_model, kv_types, PROMPTS, max_tokens=90, ends=frozenset(), what="target"), opened


def test_compare_types_finds_equal_and_different_models() -> None:
    (reference, same, other), opened = compared("float32", "float16", "int8")
    assert opened == ["float32", "float16", "int8"]
    for quality in (reference, same):
        assert (quality.ratio, quality.ratio_low, quality.ratio_high, quality.divergence) == (1, 1, 1, 0)
        assert quality.leading == quality.positions == 6 * (3 + 90 - 1)
        assert (quality.identical, quality.texts) == (6, 6)
    assert other.positions == reference.positions
    assert other.perplexity > reference.perplexity
    assert other.ratio == pytest.approx(other.perplexity / reference.perplexity)
    assert other.ratio_low > 1
    assert other.leading < other.positions
    assert other.divergence > 0.1
    assert other.identical == 0


def test_compare_types_refuses_a_model_with_another_type() -> None:
    with pytest.raises(CapabilityError, match="opened with KV type float32, not int8"):
        compare_types(
            lambda kv_type: nullcontext(TableModel(toy_tables(24, seed=3))),
            ("int8",),
            PROMPTS,
            max_tokens=4,
            ends=frozenset(),
            what="target",
        )


def test_scoring_nbytes_covers_scores_and_logits() -> None:
    found = scoring_nbytes(PROMPTS, max_tokens=10, rows=1000)
    assert found >= 6 * 13 * LIKELY * 8 + 2 * PIECE * 1000 * 4


# -- engines -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    pytest.importorskip(ENGINES[name])
    return name


@pytest.mark.usefixtures("tables_too")
def test_eval_kv_types_compares_int8_with_float32(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "--kv-types", "--runtimes", engine, "--limit", "3", "-n", "8", "--json", "--memory", "1GB"]
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    value = json.loads(out[-1])
    assert not value["saved"]  # the bundled pack is not saved by default
    for role in ("target", "draft"):
        types = value["models"][role]["kv_types"][engine]["types"]
        reference, smallest = types[0], types[-1]
        assert (reference["kv_type"], smallest["kv_type"]) == ("float32", "int8")
        assert (reference["ratio"], reference["divergence"]) == (1, 0)
        assert reference["leading"] == reference["positions"] == smallest["positions"] > 3 * 8
        assert reference["identical"] == reference["texts"] == 3
        assert 0.5 < smallest["ratio"] < 2
        assert 0 < smallest["divergence"] < 0.1
        assert smallest["ratio_low"] <= smallest["ratio"] <= smallest["ratio_high"]
        assert smallest["leading_bounds"][0] > 0.5
        assert [each["kv_nbytes"] for each in types] == sorted((each["kv_nbytes"] for each in types), reverse=True)
        assert smallest["kv_nbytes"] < 0.3 * reference["kv_nbytes"]
    titles = next(line for line in out if line.startswith("engine"))
    assert all(word in titles for word in ("KV type", "bytes per token", "perplexity", "same top token", "KL"))


def test_eval_kv_types_float32_equals_itself(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "--kv-types", "--kv-type", "float32", "--role", "target", "--runtimes", engine, "--json"]
    assert main([*words, "--limit", "2", "-n", "4"]) == 0
    _, again = json.loads(capsys.readouterr().out.splitlines()[-1])["models"]["target"]["kv_types"][engine]["types"]
    assert (again["ratio"], again["ratio_low"], again["ratio_high"], again["divergence"]) == (1, 1, 1, 0)
    assert (again["leading"], again["identical"]) == (again["positions"], 2)


def test_score_texts_of_a_wide_pass_use_the_quantized_cache(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of wide passes are far closer to scores row by row, as in decoding, than to float32's."""
    tokens = tuple(int(token) for token in np.random.default_rng(4).integers(300, 8000, 70))
    text = ScoredText(tokens, 1)
    losses = {}
    for kv_type in ("float32", "int8"):
        with load(runtime=engine, kv_type=kv_type) as pair:
            losses[kv_type] = Scores.joined(score_rows(pair.target, text)).losses
            if kv_type == "int8":
                with monkeypatch.context() as patch:
                    patch.setattr("edgedecode.engines.text_scores.PIECE", 1)
                    losses["row by row"] = Scores.joined(score_rows(pair.target, text)).losses
                    assert len(list(score_rows(pair.target, text))) == 69
    smaller = np.abs(losses["int8"] - losses["float32"]).mean()
    widths = np.abs(losses["int8"] - losses["row by row"]).mean()
    assert widths < smaller / 3


# -- the verb ------------------------------------------------------------------------------------------------------

onnx = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")


@onnx
@pytest.mark.usefixtures("tables_too")
def test_eval_kv_types_without_the_graph_names_the_export_option(
    pack_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_manifest(pack_copy, lambda value: value["models"]["target"]["graphs"].pop("kv8"))
    assert main(["eval", "--kv-types", "-m", str(pack_copy), "--runtimes", "onnx", "--role", "target", "--json"]) == 1
    line, value = capsys.readouterr().out.splitlines()
    assert line.startswith("target on onnx: nothing to compare: ")
    assert "--graphs base,kv8" in line
    assert json.loads(value) == {"pack": str(pack_copy), "saved": False, "models": {"target": {}}}


@onnx
def test_eval_kv_types_adds_its_result_to_the_exports_figures(pack_copy: Path) -> None:
    before = Manifest.load(pack_copy).models["target"]
    words = ["eval", "--kv-types", "-m", str(pack_copy), "--runtimes", "onnx", "--role", "target"]
    assert main([*words, "--limit", "2", "-n", "4"]) == 0
    after = Manifest.load(pack_copy).models["target"]
    new = {name: value for name, value in after.parity.items() if name not in before.parity}
    assert new.keys() == {f"kv_int8_onnx_{name}" for name in ("perplexity_ratio", "top1", "divergence", "positions")}
    assert 0.5 < new["kv_int8_onnx_perplexity_ratio"] < 2
    assert replace(after, parity=before.parity) == before


@onnx
def test_offered_types_are_known_before_opening(pack_copy: Path) -> None:
    refused = refused_types("onnx", Manifest.load(pack_copy), pack_copy, role="target")
    assert types_to_compare(None, refused) == ("float32", "int8")
    assert types_to_compare("float16", refused) == ()
    assert "float16" in refused["float16"]


# -- quality of a type against the reference, on known scores ----------------------------------------------------------


def text(losses: Sequence[float], leading: Sequence[int], *, divergence: float = 0.0, answer: str = "a") -> TextScores:
    scores = Scores(np.array(losses, np.float32), np.array(leading, np.int64))
    return TextScores(scores, divergence, [ord(letter) for letter in answer])


def test_quality_of_a_type_against_the_reference() -> None:
    reference = [text([1, 2], [5, 6], answer="ab"), text([3], [7], answer="c")]
    found = [text([1.5, 2.5], [5, 9], divergence=0.3, answer="ab"), text([3.5], [7], divergence=0.6, answer="cd")]
    quality = quality_of(found, reference, kv_type="int8", kv_nbytes=64)
    assert (quality.kv_type, quality.kv_nbytes, quality.positions, quality.texts) == ("int8", 64, 3, 2)
    assert quality.perplexity == pytest.approx(math.exp(7.5 / 3))
    assert quality.ratio == pytest.approx(math.exp(0.5))
    assert (quality.ratio_low, quality.ratio_high) == (pytest.approx(math.exp(0.5)), pytest.approx(math.exp(0.5)))
    assert (quality.leading_rate.count, quality.leading_rate.total) == (2, 3)
    assert quality.divergence == pytest.approx(0.3)
    assert (quality.identical_rate.count, quality.identical_rate.total) == (1, 2)


def test_ratio_bounds_contain_the_ratio_and_shrink_with_more_texts() -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (20, 2000):
        lengths = rng.integers(10, 100, count)
        worse = lengths * (0.01 + 0.02 * rng.standard_normal(count))
        found = ratio_bounds(worse, lengths)
        assert found is not None
        low, high = found
        assert low < math.exp(worse.sum() / lengths.sum()) < high
        assert found == ratio_bounds(worse, lengths)  # the bootstrap samples are seeded
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


def test_ratio_bounds_weigh_texts_by_their_tokens() -> None:
    found = ratio_bounds([0.0] * 50 + [10.0] * 50, [1] * 50 + [999] * 50)
    assert found == pytest.approx((math.exp(500 / 50_000), math.exp(500 / 50_000)), rel=1e-3)


def test_ratio_bounds_of_one_text_are_none() -> None:
    assert ratio_bounds([0.5], [3]) is None
    quality = quality_of([text([1], [1])], [text([1], [1])], kv_type="int8", kv_nbytes=0)
    assert (quality.ratio_low, quality.ratio_high) == (None, None)
