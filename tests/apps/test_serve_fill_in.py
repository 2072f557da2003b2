"""`serve`: what is missing between two texts, in each API, of a model whose tokenizer has the tokens for it."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apps.serving import COMPLETIONS, Running

# isort: split
import edgedecode
from edgedecode import InputError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.text.fill_in import can_fill_in, fill_in_prompt
from tests.apps.packs import sign

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
BEFORE, AFTER = "Once upon a time there was a ", " who lived in the wood."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of the bundled pack, with other names for the last tokens, which no other token is made of."""
    pack = tmp_path_factory.mktemp("packs") / "coder"
    shutil.copytree(BUNDLED_PACK, pack)
    path = pack / "tokenizer.json"
    _rename_last(path)
    sign(pack, path)
    with edgedecode.load(pack, runtime="onnx") as pair, Running(pair) as running:
        yield running


def _rename_last(path: Path) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = value["model"]["vocab"]
    for mark, name in zip(MARKS, [*vocabulary][-len(MARKS) :], strict=True):
        vocabulary[mark] = vocabulary.pop(name)
        value["added_tokens"].append({**value["added_tokens"][0], "id": vocabulary[mark], "content": mark})
        value["model"]["merges"] = [each for each in value["model"]["merges"] if "".join(each) != name]
    path.write_text(json.dumps(value), encoding="utf-8")


def expected(server: Running, *, begun: str = "", file: str = "") -> str:
    """Return what a completion of the prompt says that has the tokens itself."""
    prefix, suffix, middle, separator = MARKS
    prompt = f"{separator}{file}" if file else ""
    prompt += f"{prefix}{BEFORE}{suffix}{AFTER}{middle}{begun}"
    given = {"prompt": prompt, "temperature": 0, "max_tokens": 8}
    return str(server.answer(given, COMPLETIONS)["choices"][0]["text"])


def test_each_api_fills_in(server: Running) -> None:
    text = expected(server)
    given: dict[str, Any] = {"prompt": BEFORE, "suffix": AFTER, "temperature": 0, "max_tokens": 8}
    assert server.answer(given, COMPLETIONS)["choices"][0]["text"] == text
    assert server.client.completions.create(model="coder", **given).choices[0].text == text
    asks = {"input_prefix": BEFORE, "input_suffix": AFTER, "temperature": 0, "n_predict": 8}
    assert server.answer(asks, "/infill")["content"] == text
    options = {"temperature": 0, "num_predict": 8}
    ollamas = {"model": server.pair.manifest.name, "prompt": BEFORE, "suffix": AFTER, "options": options}
    assert server.answer({**ollamas, "stream": False}, "/api/generate")["response"] == text
    del given["suffix"]
    assert text != server.answer(given, COMPLETIONS)["choices"][0]["text"]


def test_a_fill_in_may_have_begun_and_know_other_files(server: Running) -> None:
    asks = {"input_prefix": BEFORE, "input_suffix": AFTER, "temperature": 0, "n_predict": 8, "prompt": "big"}
    assert server.answer(asks, "/infill")["content"] == expected(server, begun="big")
    asks["input_extra"] = [{"filename": "a.txt", "text": "A bear."}]
    assert server.answer(asks, "/infill")["content"] == expected(server, begun="big", file="a.txt\nA bear.")


def test_texts_do_not_spell_the_tokens(server: Running) -> None:
    tokenizer = server.pair.tokenizer
    ids = [tokenizer.token_to_id(mark) for mark in MARKS]
    prompt = fill_in_prompt(tokenizer, f"a {MARKS[1]}", f"b {MARKS[2]} <|im_end|>", files=[("x", MARKS[3])])
    assert [each for each in prompt if each in tokenizer.special_ids] == [ids[3], *ids[:3]]
    assert tokenizer.decode(prompt) == f"x\n{MARKS[3]}a {MARKS[1]}b {MARKS[2]} <|im_end|>"


def test_what_cannot_be_filled_in_is_refused(server: Running) -> None:
    given: dict[str, Any] = {"prompt": BEFORE, "suffix": AFTER}
    server.refuses(given | {"echo": True}, "echo", COMPLETIONS)
    status, reply = server.post({"model": server.pair.manifest.name, **given, "system": "x"}, "/api/generate")
    assert (status, "system" in reply["error"]) == (400, True)
    plain = edgedecode.load(BUNDLED_PACK, runtime="onnx")
    with plain:
        assert not can_fill_in(plain.tokenizer)
        with pytest.raises(InputError, match="no tokens to fill in with"):
            fill_in_prompt(plain.tokenizer, "a", "b")
