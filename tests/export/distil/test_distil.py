"""`distil` on the bundled target: texts, the head and its folder, going on where it stopped, and what it refuses."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

from edgedecode import Pair, SamplingOptions, SessionOptions, load
from edgedecode.cli import main
from edgedecode.errors import InputError
from edgedecode.export.distil.acceptance import Acceptance
from edgedecode.export.distil.distil import Distillation, DistilRequest, Progress
from edgedecode.export.distil.kinds.head_kind import HeadKind
from edgedecode.export.distil.kinds.head_network import HeadSizes
from edgedecode.export.distil.kinds.kind import Started
from edgedecode.export.distil.labels import Labels, label_type, labelled, use_only
from edgedecode.export.distil.plan import DistilPlan, Needs, distil_plan
from edgedecode.export.distil.speed import speed_ups, tokens_a_round
from edgedecode.export.distil.texts import (
    HELD_OUT,
    MOST_ANSWER,
    MOST_PROMPT,
    TOGETHER,
    Text,
    bundled_prompts,
    read_texts,
    short_enough,
    without_shared,
    write_texts,
)
from edgedecode.export.heads.layouts import read_head
from edgedecode.export.stages import Stages
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.text.prompts import Prompt, parse_prompts
from tests.export.distil.killing import kill_when
from tests.peft_folders import write_peft

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
TOKENS = 1500
NEEDS = Needs(HeadSizes(256, 4, 2, 64, 512, 8192, 1e-6, 10000.0), 1 << 20, layers=3, width=768)
UNSEEN = Path(__file__).parents[3] / "bench" / "unseen.jsonl"
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


def enough(count: int, told: list[Text]) -> Callable[[Text], bool]:
    """Return an `advance` that wants this many texts."""

    def advance(text: Text) -> bool:
        told.append(text)
        return len(told) < count

    return advance


def test_bundled_prompts_are_many_and_of_several_kinds() -> None:
    prompts = bundled_prompts()
    assert len({prompt.turns for prompt in prompts}) == len(prompts) >= 150
    assert len({prompt.family for prompt in prompts}) >= 6
    assert len({prompt.family for prompt in prompts[::HELD_OUT]}) >= 6


def test_no_bundled_prompt_is_one_that_speed_is_measured_on() -> None:
    def words(text: str) -> set[str]:
        return set(re.findall(r"\w+", text.lower()))

    measured = [words(turn) for prompt in parse_prompts(UNSEEN.read_bytes(), UNSEEN.name) for turn in prompt.turns]
    for prompt in bundled_prompts():
        ours = words(prompt.turns[0])
        assert all(len(ours & theirs) < 0.6 * len(ours | theirs) for theirs in measured), prompt.turns


def test_texts_do_not_depend_on_where_the_writing_stopped(tmp_path: Path) -> None:
    prompts = [Prompt("story", (), (f"Tell me a story about a {animal}.",)) for animal in ("cat", "dog", "hen")]
    prompts.append(Prompt("", (), ("word " * 2 * MOST_PROMPT,)))
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    with load(BUNDLED_PACK) as pair:
        assert short_enough(pair, prompts) == prompts[:3]
        write_texts(pair, prompts[:3], whole, advance=enough(6, []))
        write_texts(pair, prompts[:3], parts, advance=enough(2, []))
        with parts.open("ab") as file:
            file.write(b'{"prompt": [1, 2')  # a write that was cut off
        told: list[Text] = []
        write_texts(pair, prompts[:3], parts, advance=enough(6, told))
        size, end = pair.tokenizer.size, pair.tokenizer.special_ids
    assert whole.read_bytes() == parts.read_bytes()
    texts = read_texts(whole, vocabulary_size=size)
    assert texts == told
    assert [text.held_out for text in texts] == [True, False, False, False, False, False]
    assert [text.temperature for text in texts[:3]] == [0.0, 0.8, 0.0]
    assert texts[3].prompt not in {text.prompt for text in texts[:3]}, "the target writes a prompt of its own"
    assert all(text.answer[-1] in end for text in texts if len(text.answer) < 100)


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


def test_no_more_disk_is_taken_than_planned(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while a state is replaced by the next one, either."""
    planned, taken, out = list[DistilPlan](), list[int](), tmp_path / "head"
    save = torch.save

    def saved(*given: object) -> None:
        save(*given)
        taken.append(sum(path.stat().st_size for path in out.rglob("*")))

    monkeypatch.setattr(torch, "save", saved)
    monkeypatch.setattr("edgedecode.export.distil.distil.MOST_EPOCHS", 1)
    request = DistilRequest(pack, out, minutes=0.5)
    Distillation(request, Stages(), planned=planned.append).run()
    (plan,) = planned
    size = Manifest.load(pack).vocabulary_size
    written = sum(len(text.answer) for text in read_texts(out / "texts.jsonl", vocabulary_size=size))
    assert written <= plan.tokens + MOST_ANSWER
    assert len(taken) > 1
    assert max(taken) <= plan.disk_nbytes


@pytest.mark.parametrize(
    ("limit", "loading", "first", "others"),
    [
        ({"minutes": 1.0}, 1.0, 8.0, 8.0),
        ({"minutes": 1.0}, 1.0, 20.0, 1.0),
        ({"minutes": 1.0}, 30.0, 8.0, 8.0),
        ({"minutes": 1.0}, 1.0, 90.0, 1.0),
        ({"minutes": 1.0}, 1.0, 1.0, 20.0),
        ({"tokens": 20000}, 1.0, 8.0, 8.0),
    ],
    ids=["even", "busy at first", "busy while loading", "one batch takes too long", "busy later", "tokens"],
)
def test_the_planned_texts_are_not_exceeded(
    limit: dict[str, float],
    loading: float,
    first: float,
    others: float,
    pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts become longer, and batches take these seconds."""
    now, planned, out = 0.0, list[DistilPlan](), tmp_path / "head"
    monkeypatch.setattr("edgedecode.export.distil.distil.monotonic", lambda: now)

    def loaded(*given: object, **more: object) -> Pair:
        nonlocal now
        now += loading
        return load(*given, **more)  # type: ignore[arg-type]

    def written(
        pair: Pair, prompts: object, path: Path, *, advance: Callable[[Text], bool], adapter: str | None
    ) -> None:
        nonlocal now
        with path.open("wb") as file:
            for number in count():
                if number % TOGETHER == 0:
                    now += first if number == 0 else others
                longer = number > 3 * TOGETHER
                text = Text((1,) * 40 * (1 + 11 * longer), (2,) * 100 * (1 + 2 * longer), 0.0)
                file.write(text.line)
                if not advance(text):
                    return

    monkeypatch.setattr("edgedecode.export.distil.distil.load", loaded)
    monkeypatch.setattr("edgedecode.export.distil.distil.write_texts", written)
    with Distillation(DistilRequest(pack, out, **limit), Stages(), planned=planned.append) as work:
        target = SimpleNamespace(rows=8192)
        monkeypatch.setattr(work.kind, "needs", lambda target: NEEDS)
        texts = work._texts(out / "texts.jsonl", target)  # type: ignore[arg-type]
    plan = planned[-1]
    assert (len(planned) > 1) is ("tokens" in limit), "it is planned again where the texts become longer"
    assert len(texts) >= TOGETHER, "what is written at once is kept"
    assert sum(len(text.answer) for text in texts) <= plan.tokens + MOST_ANSWER
    positions = sum(len(text.tokens) for text in texts)
    sizes = {"target_nbytes": 0, "made_nbytes": Manifest.load(pack).files["target/weights.bin"].nbytes}
    assert (
        plan.disk_nbytes >= distil_plan(NEEDS, vocabulary_size=8192, tokens=0, positions=positions, **sizes).disk_nbytes
    )


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


def test_no_text_is_trained_on_whose_prompt_is_held_out() -> None:
    texts = [Text((1, 2), (3,), 0.0, held_out=True), Text((1, 2), (4,), 0.8), Text((1, 3), (4,), 0.8)]
    assert without_shared(texts) == [texts[0], texts[2]]


def test_the_best_result_is_kept(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, written = list[Progress](), list[int]()
    monkeypatch.setattr("edgedecode.export.distil.distil.EPOCHS", 1)
    monkeypatch.setattr("edgedecode.export.distil.distil.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("edgedecode.export.distil.batches.POSITIONS", 512)

    def measured(*_: object) -> dict[str, Acceptance]:
        return {"": Acceptance(10, [max(0, 5 - abs(len(lines) - 1)), 0, 0, 0, 0, 0])}

    write = HeadKind.write

    def note(kind: HeadKind, folder: Path, started: Started) -> None:
        written.append(len(lines))
        write(kind, folder, started)

    monkeypatch.setattr("edgedecode.export.distil.distil.measure", measured)
    monkeypatch.setattr(HeadKind, "write", note)
    request = DistilRequest(pack, tmp_path / "head", tokens=TOKENS)
    with Distillation(request, Stages(), report=lines.append) as work:
        work.run()
    assert len(lines) > 3
    assert written == [0, 1]
    with Distillation(replace(request, resume=True), Stages(), report=lines.append) as work:
        work.run()
    assert written == [0, 1]


def test_texts_that_the_minutes_do_not_suffice_to_read_are_left_out(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = tmp_path / "answers.jsonl", tmp_path / "head"
    given.write_text("".join(f'{{"prompt": [1, {index}], "answer": [3, 4, 5]}}\n' for index in range(200)))
    now = 0.0

    def later() -> float:
        nonlocal now
        now += 0.25
        return now

    monkeypatch.setattr("edgedecode.export.distil.distil.monotonic", later)
    monkeypatch.setattr("edgedecode.export.distil.distil.MOST_EPOCHS", 1)
    request = DistilRequest(pack, out, minutes=0.5, answers=given)
    with Distillation(request, Stages()) as work:
        work.run()
    read = (out / "labels.bin").stat().st_size // label_type(3 * 256).itemsize // 5
    assert 60 < read < 120
    before = (out / "model.safetensors").read_bytes()
    (out / "labels.bin").write_bytes((out / "labels.bin").read_bytes()[:-9])
    with Distillation(replace(request, resume=True), Stages()) as work:
        work.run()
    assert (out / "model.safetensors").read_bytes() == before
    assert (out / "labels.bin").stat().st_size == read * 5 * label_type(3 * 256).itemsize


def test_tokens_a_round_are_counted_by_text(pack: Path, tmp_path: Path) -> None:
    with load(pack) as pair:
        write_texts(pair, bundled_prompts(), tmp_path / "texts.jsonl", advance=enough(3, []))
        texts = read_texts(tmp_path / "texts.jsonl", vocabulary_size=pair.tokenizer.size)
    found = tokens_a_round(pack, texts, drafter="model", adapter=None, advance=lambda count: None)
    assert len(found) == 3
    assert all(1.0 <= each <= 4.0 for each in found)
    assert found == tokens_a_round(pack, texts, drafter="model", adapter=None, advance=lambda count: None)


def test_labels_of_other_texts_are_written_again_and_never_trained_on(tmp_path: Path) -> None:
    one, other = (Text((1, 2), (3, each), 0.0) for each in (4, 5))
    path = tmp_path / "labels.bin"
    assert labelled(path, [one, one], width=6, is_trained=False) == (0, 2)
    with path.open("ab") as file:
        file.write(bytes(7 * label_type(6).itemsize))
    assert labelled(path, [one, one], width=6, is_trained=True) == (1, 2)
    assert path.stat().st_size == 4 * label_type(6).itemsize
    with pytest.raises(InputError, match="are not those of its training"):
        labelled(path, [other, one], width=6, is_trained=True)
    assert labelled(path, [one, one], width=6, is_trained=True) == (1, 2)
    use_only(path, 1)
    assert labelled(path, [one, one], width=6, is_trained=True) == (1, 1)
    assert labelled(path, [one, one], width=6, is_trained=False) == (1, 2)
    assert labelled(path, [other, one], width=6, is_trained=False) == (0, 2)


def test_a_target_of_few_positions_writes_shorter_texts(pack: Path, tmp_path: Path) -> None:
    manifest = json.loads((pack / "edgedecode.json").read_text())
    manifest["models"]["target"]["context"] = manifest["models"]["draft"]["context"] = 208
    (pack / "edgedecode.json").write_text(json.dumps(manifest))
    with load(pack) as pair, pytest.raises(InputError, match="every prompt has more than 128 tokens"):
        short_enough(pair, [Prompt("", (), ("word " * 128,))])
    request = DistilRequest(pack, tmp_path / "head", tokens=TOKENS)
    held_out = Distillation(request, Stages()).run()
    assert max(len(text.tokens) for text in held_out) <= 208
    assert len(speed_ups(pack, held_out[:1], adapter=None, advance=lambda count: None)) == 1


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
