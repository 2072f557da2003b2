"""Models of a packaged folder in the native library against the same models in Python: the same bits."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedecode
from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import LanguageModel, State
from edgedecode.errors import EdgeDecodeError
from edgedecode.export.native.folder import write_native_folder
from edgedecode.export.stages import Stages
from edgedecode.library.find import find_pack
from edgedecode.pair import Pair
from tests.made_once import made_once, run_folder
from tests.native.conftest import Check

pytest.importorskip("onnxruntime")

ENGINE = next((Path(__import__("onnxruntime").__file__).parent / "capi").glob("libonnxruntime.so*"), None)
Steps = Sequence[Mapping[str, Any]]


def packaged(folder: Path, pack: Path | None = None, *, kv_type: str = "float32") -> Path:
    """Return the folder, made once."""
    return made_once(folder, lambda out: write_native_folder(pack or find_pack(None), out, Stages(), kv_type=kv_type))


def options(**more: object) -> str:
    return json.dumps({"engine": str(ENGINE), **more})


def digest(values: FloatArray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def last_rows(model: LanguageModel, state: State, step: Mapping[str, Any]) -> FloatArray:
    """Return the logits of a pass's last rows."""
    count = len(step["tokens"])
    rows = range(count - step["rows"], count)
    return model.forward(step["tokens"], state, rows=rows).logits


def in_python(models: Mapping[str, LanguageModel], steps: Steps) -> Iterator[Any]:
    """Yield what each step gives; errors as their words."""
    states: dict[int, tuple[LanguageModel, Any]] = {}
    for step in steps:
        if step["op"] == "new":
            model = models[step["model"]]
            states[step["state"]] = (model, model.new_state(step["capacity"], rows=step["rows"], tree=False))
            yield {"capacity": step["capacity"]}
            continue
        model, state = states[step["state"]]
        try:
            if step["op"] == "keep":
                state.keep(range(step["count"]))
            elif step["op"] == "crop":
                state.crop(step["length"])
            else:
                assert step["op"] == "forward"
                yield {"logits": digest(last_rows(model, state, step))}
                continue
            yield {"length": state.length, "pending": state.pending}
        except EdgeDecodeError as error:
            yield {"error": str(error).replace("--ctx-size", '"context"')}  # as the library's interface names it


def steps_of(model: str, size: int, *, long: int = 300) -> list[dict[str, Any]]:
    """Return passes of every kind: a prompt in pieces, one row, several, over passes, kept, rolled back."""
    rng = np.random.default_rng(7)

    def ids(count: int) -> list[int]:
        return [int(each) for each in rng.integers(0, size, count)]

    def forward(state: int, count: int, rows: int) -> dict[str, Any]:
        return {"op": "forward", "state": state, "tokens": ids(count), "rows": rows}

    return [
        {"op": "new", "state": 0, "model": model, "capacity": long + 60, "rows": 8},
        {"op": "new", "state": 1, "model": model, "capacity": 20, "rows": 1},
        forward(0, long, long - 250),  # of more than one piece
        forward(1, 5, 0),
        {"op": "keep", "state": 0, "count": long},
        forward(0, 1, 1),
        {"op": "keep", "state": 0, "count": 1},
        forward(0, 4, 4),
        forward(0, 2, 1),
        {"op": "keep", "state": 0, "count": 3},
        forward(1, 3, 2),
        {"op": "crop", "state": 0, "length": long - 3},
        forward(0, 2, 2),
        {"op": "crop", "state": 0, "length": long - 3},
        {"op": "keep", "state": 1, "count": 8},
        forward(1, 1, 1),
    ]


WRONG = [
    {"op": "keep", "state": 0, "count": 7},
    {"op": "crop", "state": 0, "length": 10_000},
    {"op": "forward", "state": 0, "tokens": [1] * 90, "rows": 1},
    {"op": "forward", "state": 0, "tokens": [], "rows": 0},
    {"op": "forward", "state": 0, "tokens": [-1], "rows": 1},
    {"op": "forward", "state": 0, "tokens": [1 << 20], "rows": 1},
    {"op": "forward", "state": 0, "tokens": [1, 2], "rows": 2},
    {"op": "keep", "state": 0, "count": 2},
    {"op": "forward", "state": 0, "tokens": [5], "rows": 1},
]
"""Refused steps, and that what follows them is right."""


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packaged(run_folder(tmp_path_factory) / "native-demo")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with edgedecode.load(runtime="onnx") as opened:
        yield opened


def assert_same(check: Check, folder: Path, models: Mapping[str, LanguageModel], steps: Steps, **more: object) -> None:
    found = check("model", str(folder), options(**more), lines=steps)
    for step, mine, theirs in zip(steps, found, in_python(models, steps), strict=True):
        mine.pop("code", None)
        assert mine == theirs, step


@pytest.mark.parametrize("threads", [1, 3])
def test_target_has_the_same_bits(native_check: Check, demo: Path, pair: Pair, threads: int) -> None:
    steps = [*steps_of("target", pair.target.card.rows), *WRONG]
    assert_same(native_check, demo, {"target": pair.target}, steps, threads=threads)


def test_trimmed_draft_has_the_same_bits(native_check: Check, demo: Path, pair: Pair) -> None:
    draft = pair.drafts.hold("trim")
    assert draft is not None
    assert draft.card.rows < draft.card.vocabulary_size
    assert_same(native_check, demo, {"draft": draft}, steps_of("draft", draft.card.vocabulary_size))


def test_int8_caches_have_the_same_bits(native_check: Check, tmp_path: Path) -> None:
    folder = packaged(tmp_path / "int8", kv_type="int8")
    with edgedecode.load(runtime="onnx", kv_type="int8") as pair:
        assert_same(native_check, folder, {"target": pair.target}, steps_of("target", pair.target.card.rows))


def test_peak_stays_within_the_plan(native_check: Check, demo: Path) -> None:
    *_, last = native_check("model", str(demo), options(), lines=[*steps_of("target", 8192), {"op": "memory"}])
    assert 0 < last["used"] <= last["plan"]
    assert last["peak"] <= last["plan"]


def plans(check: Check, folder: Path, *given: Mapping[str, Any]) -> list[Any]:
    return check("plan", str(folder), lines=given)


def test_a_small_budget_takes_the_context_then_the_drafts(native_check: Check, demo: Path) -> None:
    (whole,) = plans(native_check, demo, {"memory": 10**9})
    assert (whole["context"], whole["draft"], whole["cuts"]) == (2048, "draft", [])
    assert sum(whole["holders"].values()) == whole["total"]
    short, alone, none, asked = plans(
        native_check,
        demo,
        {"memory": whole["total"] - 4_000_000},
        {"memory": whole["total"] - 18_000_000},
        {"memory": 20_000_000},
        {"memory": whole["total"] - 4_000_000, "context": 2048},
    )
    assert 512 <= short["context"] < 2048
    assert short["draft"] == "draft"
    assert short["total"] <= whole["total"] - 4_000_000
    assert alone["draft"] == ""
    assert alone["total"] <= whole["total"] - 18_000_000
    said = re.search(r'raise "memory" to (\d+) or more', none["error"])
    assert said is not None
    (enough,) = plans(native_check, demo, {"memory": int(said[1])})
    assert enough["context"] == 512
    assert none["code"] == -4
    assert (asked["context"], asked["draft"]) == (2048, "")


def _newer(value: dict[str, Any]) -> None:
    value["version"] = 2


def _foreign(value: dict[str, Any]) -> None:
    value["format"] = "other"


def _outside(value: dict[str, Any]) -> None:
    value["files"]["../secret"] = value["files"].pop("target/graph.onnx")


def _unlisted(value: dict[str, Any]) -> None:
    value["models"]["target"]["graph"] = "target/other.onnx"


def _wide(value: dict[str, Any]) -> None:
    value["models"]["target"]["rows"] = 1 << 40


def _lacking(value: dict[str, Any]) -> None:
    del value["models"]["target"]["caches"]


def _typed(value: dict[str, Any]) -> None:
    value["models"]["target"]["head"] = 1


def _headless(value: dict[str, Any]) -> None:
    del value["models"]["target"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_newer, "has format version 2, this library reads up to 1"),
        (_foreign, 'the format is "other"'),
        (_outside, "may be outside"),
        (_unlisted, "is not among its files"),
        (_wide, "rows 1099511627776 is out of range: 1 to"),
        (_lacking, "native.json.models.target has no caches"),
        (_typed, "head is 1: expected true or false"),
        (_headless, "has no target"),
    ],
)
def test_a_damaged_description_is_refused(
    native_check: Check, demo: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    value = json.loads((demo / "native.json").read_text())
    change(value)
    (tmp_path / "native.json").write_text(json.dumps(value))
    (found,) = plans(native_check, tmp_path, {})
    assert words in found["error"]
    assert found["code"] == -3


def test_a_damaged_folder_is_refused(native_check: Check, demo: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a folder, 'öäü'"
    for path in demo.rglob("*"):
        if path.is_file():
            place = copy / path.relative_to(demo)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    (whole,) = plans(native_check, copy, {"verify": True})
    assert "error" not in whole
    graph = copy / "target/graph.onnx"
    data = graph.read_bytes()
    graph.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    plain, verified = plans(native_check, copy, {}, {"verify": True})
    assert "error" not in plain
    assert f"{graph} has changed" in verified["error"]
    graph.write_bytes(data[:-1])
    (short,) = plans(native_check, copy, {})
    assert f"{graph} has {len(data) - 1} bytes, and had {len(data)}" in short["error"]
    graph.unlink()
    (gone,) = plans(native_check, copy, {})
    assert f"{graph} is missing" in gone["error"]
    (nothing,) = plans(native_check, tmp_path / "nothing", {})
    assert "is no packaged folder" in nothing["error"]
    (copy / "native.json").write_text("{")
    (broken,) = plans(native_check, copy, {})
    assert "is not valid JSON" in broken["error"]
