"""`distil` on the bundled target: the head and its folder, going on where it stopped, and what the command says."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")


from edgedecode import SamplingOptions, SessionOptions, load
from edgedecode.cli import main
from edgedecode.errors import InputError
from edgedecode.export.cli.distil_command import _line
from edgedecode.export.distil.acceptance import Acceptance, Trend
from edgedecode.export.distil.distil import Distillation, DistilRequest, Progress
from edgedecode.export.distil.kinds.head_kind import HeadKind
from edgedecode.export.distil.kinds.kind import Started
from edgedecode.export.distil.labels import Labels
from edgedecode.export.distil.plan import DistilPlan
from edgedecode.export.distil.speed import speed_ups, tokens_a_round
from edgedecode.export.distil.texts import (
    HELD_OUT,
    bundled_prompts,
    read_texts,
    write_texts,
)
from edgedecode.export.heads.layouts import read_head
from edgedecode.export.stages import Stages
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.export.distil.stopping import enough, kill_when
from tests.peft_folders import write_peft

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
TOKENS = 1500
CHILD = """
import sys
from pathlib import Path
import torch
from edgedecode.export.distil import distil
from edgedecode.export.stages import Stages
distil.EPOCHS = 3
torch.set_num_threads(1)
request = distil.DistilRequest(Path(sys.argv[1]), Path(sys.argv[2]), tokens=int(sys.argv[3]), resume=len(sys.argv) > 4)
distil.Distillation(request, Stages(), report=lambda progress: None).run()
"""


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_head_is_trained_that_guesses_what_a_new_one_does_not(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.export.distil.batches.POSITIONS", 512)  # more steps of less
    out, planned, measured = tmp_path / "head", list[DistilPlan](), []
    prompts = tmp_path / "prompts.jsonl"
    animals = ("cat", "dog", "hen", "fox", "owl", "frog", "pony", "bear", "duck", "mouse", "horse", "squirrel")
    prompts.write_text("".join(f'{{"prompt": "Tell me a short story about a {animal}."}}\n' for animal in animals))
    request = DistilRequest(pack, out, tokens=2 * TOKENS, prompts=prompts)
    held_out = Distillation(request, Stages(), planned=planned.append, report=measured.append).run()
    head, target = read_head(out), Manifest.load(pack).models["target"]
    assert head.shape.taps == (2, target.layers // 2, target.layers - 3)
    assert head.shape.license == target.license
    assert head.ids is not None or head.shape.rows == target.rows
    assert measured[-1].total.length() > 1.1  # 1.00 for a new one
    assert held_out
    assert planned[0].disk_nbytes > sum(path.stat().st_size for path in out.iterdir())
    assert not any(path.name == "target.gguf" for path in out.iterdir())


def child(pack: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", CHILD, str(pack), str(out), str(TOKENS), *more]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training that never stopped."""
    out = tmp_path_factory.mktemp("distil") / "head"
    subprocess.run(child(BUNDLED_PACK, out), check=True)
    return out


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("texts.jsonl", 1), ("texts.jsonl", 3000), ("labels.bin", 1), ("labels.bin", 1 << 20), ("training.pt", 1)],
)
def test_a_killed_training_goes_on_to_the_same_weights(name: str, nbytes: int, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    kill_when(child(BUNDLED_PACK, out), out, name, nbytes)
    subprocess.run(child(BUNDLED_PACK, out, "resume"), check=True)
    for each in ("texts.jsonl", "labels.bin", "model.safetensors", "config.json"):
        assert (unbroken / each).read_bytes() == (out / each).read_bytes(), each


def test_the_command_says_what_it_does_and_leaves_a_slower_pack_as_it_was(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds, rounds = (list[list[float]]() for _ in range(2))
    given = ["distil", str(pack), "--tokens", str(TOKENS), "--out", str(tmp_path / "head")]
    before = content(pack)

    def told(values: list[list[float]]) -> Callable[..., list[float]]:
        def next_value(root: Path, *_: object, **__: object) -> list[float]:
            assert content(pack) == before, "it is measured in a copy"
            assert (Manifest.load(root).head is not None) or root == pack
            return values.pop(0)

        return next_value

    monkeypatch.setattr("edgedecode.export.distil.adding.speed_ups", told(speeds))
    monkeypatch.setattr("edgedecode.export.distil.adding.tokens_a_round", told(rounds))
    speeds += [1.5, 1.5], [1.4, 1.5]
    assert main(given) == 0
    said = capsys.readouterr()
    assert "the model was left as it was" in said.out
    assert "of memory" in said.err
    assert "tokens a round" in said.err
    assert content(pack) == before
    speeds += [1.5, 1.4, 1.6], [1.9, 1.2, 1.5]  # more on average, by less than the texts differ
    assert main([*given, "--resume"]) == 0
    assert "+0.03 ± 0.19" in (said := capsys.readouterr().out)
    assert "no clear gain; the model was left" in said
    assert content(pack) == before
    speeds += [1.5, 1.4], [1.6, 1.6]
    assert main([*given, "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] is True
    assert Manifest.load(pack).head is not None
    before = content(pack)
    speeds += [1.5, 1.5], [1.6, 1.6]
    rounds += [2.0, 2.1], [1.3, 2.9]
    assert main([*given, "--resume"]) == 0
    assert content(pack) == before
    speeds += [1.6, 1.6], [1.5, 1.6]
    rounds += [2.0, 2.1], [2.3, 2.3]
    assert main([*given, "--resume"]) == 0
    assert "the head was added" in capsys.readouterr().out
    assert Manifest.load(pack).head.gguf == "head/head-2.gguf"
    assert sorted(path.name for path in (pack / "head").iterdir()) == ["head-2.gguf"]
    assert not [path for path in (tmp_path / "head").iterdir() if path.is_dir()]


def test_the_best_result_is_kept(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, written = list[Progress](), list[int]()
    monkeypatch.setattr("edgedecode.export.distil.distil.EPOCHS", 1)
    monkeypatch.setattr("edgedecode.export.distil.distil.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("edgedecode.export.distil.batches.POSITIONS", 512)

    def measured(*_: object) -> dict[str, Acceptance]:
        return {"": Acceptance(10, rounds=[10] * 6, emitted=[10 + max(0, 5 - abs(len(lines) - 1))] * 6)}

    write = HeadKind.write

    def note(kind: HeadKind, folder: Path, started: Started) -> None:
        if folder == tmp_path / "head":  # and not where rounds are timed
            written.append(len(lines))
        write(kind, folder, started)

    monkeypatch.setattr("edgedecode.export.distil.distil.measure", measured)
    monkeypatch.setattr(HeadKind, "write", note)
    request = DistilRequest(pack, tmp_path / "head", tokens=TOKENS)
    with Distillation(request, Stages(), report=lines.append) as work:
        work.run()
    assert len(lines) > 3
    assert written == [0, 1]
    assert work.best is not None
    assert work.best.acceptance.length() == 1.5
    with Distillation(replace(request, resume=True), Stages(), report=lines.append) as work:
        work.run()
    assert written == [0, 1]


def test_another_hour_is_told_of_a_training_that_goes_on() -> None:
    progress = Progress(60.0, 1000, {"": Acceptance.of([1, 0, 0])}, 1.2, Trend(1.0, 0.1), 1000)
    assert "another hour: " in _line(progress)
    assert "another hour" not in _line(replace(progress, hourly=0))


def test_tokens_a_round_are_counted_by_text(pack: Path, tmp_path: Path) -> None:
    with load(pack) as pair:
        write_texts(pair, bundled_prompts(), tmp_path / "texts.jsonl", advance=enough(3, []))
        texts = read_texts(tmp_path / "texts.jsonl", vocabulary_size=pair.tokenizer.size)
    found = tokens_a_round(pack, texts, drafter="model", adapter=None, advance=lambda count: None)
    assert len(found) == 3
    assert all(1.0 <= each <= 4.0 for each in found)
    assert found == tokens_a_round(pack, texts, drafter="model", adapter=None, advance=lambda count: None)


def test_answers_and_labels_are_those_with_the_adapter(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgedecode.export.distil.distil.EPOCHS", 1)
    assert main(["adapter", "add", str(pack), f"tone={write_peft(tmp_path / 'tone', seed=3, size=0.05)}"]) == 0
    out = tmp_path / "head"
    request = DistilRequest(pack, out, tokens=TOKENS, adapter="tone")
    Distillation(request, Stages()).run()
    manifest = Manifest.load(pack)
    texts = read_texts(out / "texts.jsonl", vocabulary_size=manifest.vocabulary_size)
    labels = Labels.open(out / "labels.bin", texts, width=3 * manifest.models["target"].hidden_size)
    greedy = [index for index, text in enumerate(texts) if text.temperature == 0]
    assert len(greedy) > 1
    for index in greedy:
        text = texts[index]
        chosen = labels.of(index)["ids"][len(text.prompt) - 1 : -1, 0]
        assert tuple(chosen) == text.answer
    with load(pack) as pair, pair.session(SessionOptions(sampling=SamplingOptions())) as session:
        plain = session.collect(session.complete(texts[0].prompt, max_tokens=len(texts[0].answer))).tokens
    assert plain != texts[0].answer
    speeds = speed_ups(pack, [text for text in texts if text.held_out][:1], adapter="tone", advance=lambda count: None)
    assert len(speeds) == 1
    given = ["distil", str(pack), "--tokens", str(TOKENS), "--out", str(out), "--resume"]
    assert main(given) == 1
    assert "was begun with another --adapter" in capsys.readouterr().err
    assert main([*given, "--adapter", "none"]) == 1
    assert "has no adapter 'none'" in capsys.readouterr().err


def test_answers_of_other_programs_are_read(pack: Path, tmp_path: Path) -> None:
    with load(pack) as pair:
        write_texts(pair, bundled_prompts(), tmp_path / "given.jsonl", advance=enough(2 * HELD_OUT, []))
        texts = read_texts(tmp_path / "given.jsonl", vocabulary_size=pair.tokenizer.size)
    given = tmp_path / "answers.jsonl"
    given.write_bytes(b"".join(replace(text, held_out=False).line for text in texts))
    first = DistilRequest(pack, tmp_path / "one", answers=given)
    held_out = Distillation(first, Stages()).run()
    assert 0 < len(held_out) < len(texts)
    again = DistilRequest(pack, tmp_path / "two", answers=given, init=tmp_path / "one")
    with Distillation(again, Stages()) as work:
        work.run()
    assert read_head(tmp_path / "two").shape == read_head(tmp_path / "one").shape
    (tmp_path / "one").rename(tmp_path / "moved")
    moved = replace(again, init=tmp_path / "moved", resume=True)
    with Distillation(moved, Stages()):
        pass
    with (tmp_path / "moved" / "model.safetensors").open("r+b") as file:
        file.write(bytes(9))
    with pytest.raises(InputError, match="was begun with another --init"):
        Distillation(moved, Stages())
