"""`edgedecode trim` on a toy pack and on the bundled one: what is measured, chosen, written, removed and refused."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from edgedecode import LoadOptions, SessionOptions, load, plan
from edgedecode.cli import main
from edgedecode.decoding.drafts import TrimmedVocabulary
from edgedecode.errors import ExportError
from edgedecode.export import frameworks
from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim import trimmed_graph
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack import model_checks
from edgedecode.pack.integrity import check_files
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest, TrimmedDraft
from edgedecode.pack.token_map import read_token_ids
from tests.conftest import Refusal
from tests.export.trim.toy_pack import ALWAYS, VOCABULARY, write_toy_pack
from tests.hub import Hub, check_download

FEW = ("--prompts", "96", "--max-tokens", "40")


def content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def run_trim(toy: Path, *words: str) -> int:
    return main(["trim", str(toy), *FEW, *words])


def trimmed_of(root: Path) -> TrimmedDraft:
    trimmed = Manifest.load(root).models["draft"].trimmed
    assert trimmed is not None
    return trimmed


@pytest.mark.usefixtures("cheap_rows")
def test_trim_writes_the_best_size(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_trim(toy, "--json") == 0
    printed = capsys.readouterr().out
    report = json.loads(printed.splitlines()[-1])
    rows = {row["size"]: row for row in report["sizes"]}
    assert {325, 650, 1024} <= rows.keys()
    assert report["size"] == min(size for size, row in rows.items() if row["coverage"] >= 0.99)
    row, manifest, trimmed = rows[report["size"]], Manifest.load(toy), trimmed_of(toy)
    check_files(manifest, toy, full=True)
    assert (trimmed.runtime, trimmed.coverage, trimmed.speed_up) == ("onnx", row["coverage"], row["speed_up"])
    assert trimmed.speed_up_full == report["whole"]["speed_up"] < row["speed_up"]
    assert row["step_seconds"] == pytest.approx(0.5 * row["size"] / VOCABULARY)
    kept = read_token_ids(toy / trimmed.graph.token_ids, rows=row["size"], vocabulary_size=VOCABULARY)
    assert set(range(ALWAYS)) <= set(kept.ids.tolist())
    assert report["files"] == {name: manifest.files[name].nbytes for name in ("draft/trim.onnx", "draft/trim.ids")}
    assert run_trim(toy, "--size", "400") == 0
    assert "a draft of 400 of 1300 ids was added and drafts by default" in capsys.readouterr().out


@pytest.mark.usefixtures("cheap_rows")
def test_a_trimmed_pack_comes_from_the_hub(toy: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_trim(toy, "--size", "400") == 0
    monkeypatch.setattr(model_checks, "check_models", lambda *_: None)  # its graphs are placeholders
    check_download(hub, toy)


def test_trim_that_is_slower_is_written_only_on_request_and_is_not_the_default(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "time_target", lambda *_, **__: dict.fromkeys(range(1, 10), 1.0))
    monkeypatch.setattr(run, "time_drafts", lambda *_, **__: (0.5, 1.2))
    before = content(toy)
    assert run_trim(toy) == 0
    assert content(toy) == before
    assert "no size is faster, and nothing was changed: the best size, " in capsys.readouterr().out
    assert run_trim(toy, "--size", "400") == 0
    assert "is slower, and drafts only with --drafter trim" in capsys.readouterr().out
    assert not trimmed_of(toy).is_faster


@pytest.mark.usefixtures("cheap_rows")
def test_trim_with_few_tokens_chooses_nothing(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = toy.parent / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"tell me {number}"}) for number in range(8)))
    assert main(["trim", str(toy), "--calibrate", str(file), "--max-tokens", "8"]) == 0
    assert "held-out tokens are too few, 200 are needed: give more prompts" in capsys.readouterr().out


def test_trim_times_real_passes(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_trim(toy, "--size", "300", "--json") == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["sizes"][0]["step_seconds"] > 0
    assert report["whole"]["step_seconds"] > 0


def test_save_trimmed_replaces_an_earlier_trim(toy: Path) -> None:
    path, before = toy / MANIFEST_NAME, content(toy)
    untouched = json.loads(path.read_text()) | {"mood": "sunny"}
    path.write_text(json.dumps(untouched))
    (toy / "draft" / "trim.ids").write_bytes(b"left by a crash")
    for size, names in ((300, ("trim.onnx", "trim.ids")), (400, ("trim-2.onnx", "trim-2.ids"))):
        run.save_trimmed(toy, TrimmedVocabulary(np.arange(size), VOCABULARY))
        added = {f"draft/{name}" for name in names}
        assert content(toy).keys() == before.keys() | added
        assert {*trimmed_of(toy).graph.files} == added
        assert trimmed_of(toy).is_faster  # nothing was measured
        check_files(Manifest.load(toy), toy, full=True)
    assert run.remove_trimmed(toy) == ["draft/trim-2.ids", "draft/trim-2.onnx"]
    left = json.loads(path.read_text())
    untouched["models"]["draft"].pop("trimmed")
    assert left == untouched
    assert content(toy).keys() == before.keys()


def test_trim_that_cannot_be_written_leaves_the_pack(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, out: Path, **__: object) -> None:
        out.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    before = content(toy)
    monkeypatch.setattr(trimmed_graph, "write_trimmed", fail)
    with pytest.raises(OSError, match="No space left"):
        run.save_trimmed(toy, TrimmedVocabulary(np.arange(300), VOCABULARY))
    assert content(toy) == before


@pytest.mark.usefixtures("cheap_rows")
def test_trim_refuses_a_full_disk_before_answering(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(toy)
    monkeypatch.setattr(run, "answer_prompts", None)  # no prompt may be answered
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert run_trim(toy) == 1
    assert "about 1.1 MB are needed and " in capsys.readouterr().err
    assert content(toy) == before


def test_trim_interrupted_leaves_the_pack(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(toy)
    monkeypatch.setattr(run, "measure_acceptance", Mock(side_effect=KeyboardInterrupt))
    assert run_trim(toy) == 130
    assert content(toy) == before
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.usefixtures("cheap_rows")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--size", "100"],
            f"a size of 100 is too small: {ALWAYS} special, added, end and byte tokens are always kept; give",
        ),
        (["--size", "1300"], "a size of 1300 trims nothing: the vocabulary has 1300 ids"),
        (["--calibrate", "EMPTY"], "EMPTY holds no prompts"),
        (["--calibrate", "BINARY"], "BINARY is not text: it has a zero byte at character 1"),
        (["--calibrate", "INVALID"], "INVALID, line 2 has neither messages nor turns (a list of strings) nor a prompt"),
        (["--calibrate", "/no/such"], "No such file or directory: /no/such"),
        (["--prompts", "1"], "a trim needs at least two prompts"),
        (["--remove"], "has no trimmed draft to remove"),
    ],
)
def test_trim_refuses_bad_input_in_one_line(
    words: Sequence[str], message: str, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"EMPTY": b"", "BINARY": b"a\0b", "INVALID": b'{"prompt": "x"}\n{"question": "y"}\n'}
    for name, data in files.items():
        (toy.parent / name).write_bytes(data)
    before = content(toy)
    words = [str(toy.parent / word) if word in files else word for word in words]
    assert main(["trim", str(toy), *words]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("edgedecode: ")]
    assert message in line
    assert content(toy) == before


def test_trim_refuses_an_unsupported_draft_before_answering(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(toy)
    monkeypatch.setattr(run, "answer_prompts", None)
    with monkeypatch.context() as patch:
        patch.setattr(trimmed_graph, "write_trimmed", Mock(side_effect=ExportError("the head is a Conv")))
        assert run_trim(toy) == 1
    assert "edgedecode: the head is a Conv" in capsys.readouterr().err
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None)
    assert run_trim(toy) == 1
    assert "trim needs onnx_ir, onnxruntime, not installed: pip install" in capsys.readouterr().err
    assert content(toy) == before
    value = json.loads((toy / MANIFEST_NAME).read_text())
    value["models"]["draft"] |= {"graphs": {}, "gguf": "draft/weights.bin"}
    (toy / MANIFEST_NAME).write_text(json.dumps(value))
    assert run_trim(toy) == 1
    assert (
        "the pack's draft has no ONNX graph: only graphs can be trimmed, not GGUF files: make a pack"
        in capsys.readouterr().err
    )


def test_trim_refuses_a_pack_without_a_draft(tmp_path: Path, refusal: Refusal) -> None:
    root = write_toy_pack(tmp_path / "alone", draft=False)
    assert "has no draft model to trim: export it with --draft" in refusal("trim", str(root))
    assert "there is no folder" in refusal("trim", str(tmp_path / "nowhere"))


def test_trim_of_the_bundled_pack_has_the_full_drafts_logits(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(BUNDLED_PACK, tmp_path / "pack"))
    ids = np.arange(0, 8192, 8)
    run.save_trimmed(copy, TrimmedVocabulary(ids, 8192))
    with load(copy, runtime="onnx", options=LoadOptions(verify=True)) as pair:
        tokens = pair.tokenizer.encode("Tell me a story about a fox.")
        full, trimmed = pair.draft, pair.drafts.hold("trim")
        expected = full.forward(tokens, full.new_state(64), rows="all").logits[:, ids].copy()
        found = trimmed.forward(tokens, trimmed.new_state(64), rows="all").logits
        assert np.array_equal(found, expected) or not full.card.row_invariant
        np.testing.assert_allclose(found, expected, atol=1e-3)
        names = {lease.name for lease in pair.budget.leases}
        assert {"weights:trim", "weights:draft"} <= names
        with pair.session(SessionOptions()) as session:
            assert session.drafter_name == "trim+suffix"
    assert run.remove_trimmed(copy) == ["draft/trim-2.ids", "draft/trim-2.onnx"]
    with load(copy, runtime="onnx", options=LoadOptions(verify=True)) as pair, pair.session() as session:
        assert session.drafter_name == "model+suffix"


def test_plan_beside_a_session_with_the_full_draft_counts_the_trimmed_one() -> None:
    """Both are loaded then, under names of their own."""
    options = SessionOptions(drafter="trim", draft_max=4, context=512)
    with load(runtime="onnx") as pair, pair.session(replace(options, drafter="model")):
        before, footprint = pair.budget.used_nbytes, pair.shared.footprint
        planned = footprint.fit_session(options, pair.budget)
        with pair.session(options) as session:
            session.generate("hello", max_tokens=8)
            assert 0 < pair.budget.used_nbytes - before <= planned.nbytes
    assert {"weights:trim", "kv:trim"} <= dict(planned.holders).keys()


def test_plan_gives_up_the_trimmed_draft_then_the_full_one() -> None:
    options = SessionOptions(context=2048)

    def first(less: int) -> str:
        whole = plan(None, options, runtime="onnx").memory.nbytes  # each time: the process may shrink between two plans
        return (*plan(None, options, runtime="onnx", memory=whole - less).memory.choice.drafters, "none")[0]

    plan(None, options, runtime="onnx")  # the first plan of a process makes it larger
    assert list(dict.fromkeys(map(first, range(0, 7_000_000, 250_000))))[:3] == ["trim", "model", "suffix"]
