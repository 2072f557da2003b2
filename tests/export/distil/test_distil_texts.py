"""The texts that `distil` writes and reads, their labels, and the plan that both keep to."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="the export extras are not installed")

import torch

from edgedecode import Pair, load
from edgedecode.errors import InputError
from edgedecode.export.distil.distil import Distillation, DistilRequest
from edgedecode.export.distil.kinds.head_network import HeadSizes
from edgedecode.export.distil.labels import label_type, labelled, use_only
from edgedecode.export.distil.plan import DistilPlan, Needs, distil_plan
from edgedecode.export.distil.speed import speed_ups
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
from edgedecode.export.stages import Stages
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.kernels.trial import tried
from edgedecode.text.prompts import Prompt, parse_prompts
from tests.export.distil.stopping import enough

pytestmark = [pytest.mark.export, pytest.mark.skipif(tried() is None, reason="no kernels for this processor")]
TOKENS = 1500
NEEDS = Needs(HeadSizes(256, 4, 2, 64, 512, 8192, 1e-6, 10000.0), 1 << 20, layers=3, width=768)
UNSEEN = Path(__file__).parents[3] / "bench" / "unseen.jsonl"


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


def test_no_text_is_trained_on_whose_prompt_is_held_out() -> None:
    texts = [Text((1, 2), (3,), 0.0, held_out=True), Text((1, 2), (4,), 0.8), Text((1, 3), (4,), 0.8)]
    assert without_shared(texts) == [texts[0], texts[2]]


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
