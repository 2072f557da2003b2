"""Adapters in the native library against Python's: the same ids and counts while one conversation changes them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode.pair import Pair
from tests.losslessness.adapters import PROMPTS, SWAPS, write_twins
from tests.made_once import made_once, run_folder
from tests.native.interface import BAD_INPUT, Library, NativeError, NativePack
from tests.native.test_models import ENGINE, packaged
from tests.native.test_session import COUNTS, described_as, options_of

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")
MOST = 24


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(run_folder(tmp_path_factory) / "twins", lambda out: write_twins(out / "pack")) / "pack"


@pytest.fixture(scope="module")
def folder(twins: Path) -> Path:
    return packaged(twins.parent / "native", twins)


@pytest.fixture(scope="module")
def pair(twins: Path) -> Iterator[Pair]:
    with edgedecode.load(twins, adapters=True) as made:
        yield made


@pytest.fixture(scope="module")
def pack(native_build: Path, folder: Path) -> Iterator[NativePack]:
    opened = Library(native_build / "libedgedecode.so").open(folder, engine=str(ENGINE), context=1024)
    yield opened
    opened.close()


@pytest.mark.parametrize("drafts", [{"drafter": "none"}, {"drafter": "model", "draft_max": 4}, {}], ids=str)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.95}], ids=str)
def test_a_conversation_changes_its_adapter(
    pack: NativePack, pair: Pair, drafts: dict[str, Any], sampling: dict[str, Any]
) -> None:
    given = {**sampling, **drafts, "seed": 5, "ignore_eos": True}
    native, texts = pack.session(**given), []
    options = replace(options_of(given, pair), context=1024)
    with pair.session(options) as own:
        for adapter, prompt in zip(SWAPS, PROMPTS * 2, strict=False):
            own.use_adapter(adapter)
            reply = own.generate(prompt, max_tokens=MOST)
            assert native.generate(message=prompt, max_tokens=MOST, adapter=adapter) == MOST, native.library.error
            found = native.stats()
            assert found["tokens"] == [*reply.tokens], adapter
            expected = json.loads(reply.stats.to_json())
            for name in COUNTS if drafts else ("cached_tokens",):  # the clock decides about drafts
                assert found["stats"][name] == expected[name], (adapter, name)
            texts.append(reply.text)
    assert len(set(texts)) > len(SWAPS) // 2
    native.close()


def test_memory_and_names(pack: NativePack, folder: Path) -> None:
    library = pack.library
    assert pack.info()["adapters"] == ["activated", "alone", "ordinary"]
    planned = library.plan(folder, context=512)["holders"]["adapter"]
    session = pack.session(adapter="ordinary")
    assert pack.info()["memory"]["holders"]["adapter:ordinary"] * 2 == planned  # the target's and the draft's
    other = pack.session(adapter="ordinary")
    assert pack.info()["memory"]["holders"]["adapter:ordinary"] * 2 == planned  # one copy
    with pytest.raises(NativeError, match="the pack has no adapter 'formal'; it has: activated, alone, ordinary"):
        pack.session(adapter="formal")
    assert session.generate(message="a", adapter="formal") == BAD_INPUT
    for each in (session, other):
        each.close()
    assert "adapter:ordinary" not in pack.info()["memory"]["holders"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"shape": [-1, 16]}, "shape -1 is out of range: 0 to 1048576"),
        ({"shape": [2**40, 0]}, "shape 1099511627776 is out of range: 0 to 1048576"),
        ({"shape": [1, 2**20]}, "which is not in the file"),
        ({"name": ""}, 'name is "", which is no adapter\'s'),
        ({"name": "lora.0.q_proj"}, 'name is "lora.0.q_proj", which is no adapter\'s'),
    ],
)
def test_damaged_adapters(pack: NativePack, folder: Path, tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    described = json.loads((folder / "native.json").read_text())
    described["models"]["target"]["adapters"]["ordinary"]["inputs"][0].update(changed)
    with pytest.raises(NativeError, match=words):
        pack.library.plan(described_as(described, folder, tmp_path))
