"""Decoding defaults, chat templates and licences, read from the files of a model folder."""

import json
import shutil
from pathlib import Path

import pytest

from edgedecode.export.base_model import open_source
from edgedecode.export.pack_texts import read_chat_template, read_generation

pytestmark = pytest.mark.export


@pytest.fixture
def model(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def write(folder: Path, name: str, **values: object) -> None:
    (folder / name).write_text(json.dumps(values))


def test_read_generation_collects_end_ids_from_all_files(model: Path) -> None:
    source = open_source(str(model))
    end = source.tokenizer.token_to_id("<|end|>")
    assert read_generation(source).end_token_ids == (3, 5, end)


def test_read_generation_ignores_sampling_values_without_do_sample(model: Path) -> None:
    values = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    write(model, "generation_config.json", eos_token_id=2, do_sample=False, **values)
    assert read_generation(open_source(str(model))).sampling == {"repetition_penalty": 1.1}
    write(model, "generation_config.json", eos_token_id=2, do_sample=True, **values)
    assert read_generation(open_source(str(model))).sampling == values


def test_read_generation_defaults_the_temperature_to_1(model: Path) -> None:
    write(model, "generation_config.json", do_sample=True)
    assert read_generation(open_source(str(model))).sampling == {"temperature": 1.0}


def test_read_generation_accepts_tokens_as_objects(model: Path) -> None:
    write(model, "tokenizer_config.json", bos_token={"content": "<s>"}, eos_token={"content": "<|end|>"})
    found = read_generation(open_source(str(model)))
    assert (found.bos_token, found.eos_token) == ("<s>", "<|end|>")


def test_read_generation_without_any_file(model: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        (model / name).unlink()
    found = read_generation(open_source(str(model)))
    assert (found.end_token_ids, found.max_tokens) == ((3,), None)
    assert read_chat_template(model) is None


@pytest.mark.parametrize(
    "value",
    ["T", [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "T"}]],
    ids=["text", "several"],
)
def test_read_chat_template_from_tokenizer_config(value: object, model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    write(model, "tokenizer_config.json", chat_template=value)
    assert read_chat_template(model) == "T"


@pytest.mark.parametrize(
    ("front", "expected"),
    [
        ("license: apache-2.0", "apache-2.0"),
        ("license: other\nlicense_name: llama3.2", "llama3.2"),
        ("tags: [x]", "unknown"),
    ],
)
def test_source_license_is_read_from_the_readme(front: str, expected: str, model: Path) -> None:
    (model / "README.md").write_text(f"---\n{front}\n---\ntext")
    assert open_source(str(model)).license == expected
    (model / "README.md").unlink()
    assert open_source(str(model)).license == "unknown"


def test_source_name_is_the_folder_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_source(str(model)).name == "model"
    monkeypatch.chdir(model)
    assert open_source(".").name == "model"
