"""Models of other programs, of packages and of folders: found under their names, and never changed."""

import os
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from gguf import GGUFWriter

import edgedecode
from edgedecode.errors import ManifestError
from edgedecode.library.find import could_be_pack, find_file, find_pack, names_pack
from edgedecode.library.named_models import model_named
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.library.stored import is_model_name, weight_type
from edgedecode.library.stores import stored_models
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal, Told
from tests.imports.files import File, Floats, write_file
from tests.small_tokenizers import byte_level

from .conftest import Stores, listing, wheel, written

Made = Callable[..., bytes]


def names() -> dict[str, str]:
    return {model.name: model.store.value for model in stored_models()}


def test_every_store_is_found(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.lm_studio("them/tiny-GGUF", "tiny-Q8_0.gguf", b"1")
    stores.lm_studio("them/tiny-GGUF", "mmproj-tiny-F16.gguf", b"2")
    stores.ollama("library/tiny:135m", b"3")
    stores.ollama("someone/tiny:latest", b"4")
    stores.hub("owner/repo", "repo.Q4_K_M.gguf", b"5")
    written(stores.home / ".cache" / "llama.cpp" / "flat.gguf", b"6")
    written(tmp_path / "mine" / "deep" / "own.gguf", b"7")
    written(tmp_path / "cache" / "models" / "owner--pulled" / "pulled-Q4_0.gguf", b"8")
    monkeypatch.setenv("EDGEDECODE_MODELS", os.pathsep.join([str(tmp_path / "mine"), str(tmp_path / "none")]))
    for package in ("some-model", "edgedecode"):  # whose own files are no models
        with ZipFile(wheel(tmp_path, package, {"model.Q4_1.gguf": b"9"})) as archive:
            archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert names() == {
        "owner/pulled:Q4_0": "library",
        "some-model": "package",
        "owner/repo:Q4_K_M": "hub cache",
        "them/tiny-GGUF:Q8_0": "LM Studio",
        "tiny:135m": "Ollama",
        "host.example/someone/tiny:latest": "Ollama",
        "flat": "llama.cpp",
        "own": "folder",
    }


@pytest.mark.parametrize(
    "name",
    ["tiny:135m", "TINY:135M", "tiny", "them/lm-GGUF", "them/lm-GGUF:q8_0", "lm-Q8_0", "lm-GGUF:Q8_0", "lm-Q8_0.gguf"],
)
def test_a_model_runs_where_it_lies(name: str, stores: Stores, made: Made) -> None:
    stores.ollama("library/tiny:135m", made("Q8_0"))
    stores.lm_studio("them/lm-GGUF", "lm-Q8_0.gguf", made("Q4_0"))
    before = listing(stores.home)
    manifest = Manifest.load(find_pack(name))
    (outside,) = manifest.outside.values()
    assert Path(outside.path).is_relative_to(stores.home)
    assert manifest.name == ("lm-Q8_0" if "lm" in name else "tiny:135m")
    assert manifest.chat_template is not None
    assert listing(stores.home) == before
    assert names_pack(name)


def test_a_link_in_the_hub_cache_is_followed(stores: Stores, made: Made) -> None:
    link = stores.hub("owner/repo", "repo-Q8_0.gguf", made())
    (outside,) = Manifest.load(find_pack("owner/repo")).outside.values()
    assert Path(outside.path) == link.resolve()


def test_names_are_completed_and_suggested(stores: Stores, made: Made, caplog: pytest.LogCaptureFixture) -> None:
    stores.ollama("library/granite:350m", made())
    stores.lm_studio("them/other-GGUF", "other-Q8_0.gguf", made("Q4_0"))
    with caplog.at_level("INFO", "edgedecode.user_notices"):
        assert Manifest.load(find_pack("gran")).name == "granite:350m"
    assert "gran is completed to granite:350m (Ollama)" in caplog.text
    for word, near in (("grnite", "granite:350m"), ("gr", ""), ("othr-gguf", "them/other-GGUF:Q8_0")):
        if near:
            with pytest.raises(ManifestError, match=f"did you mean {near}"):
                find_pack(word)
        assert could_be_pack(word)
    assert not names_pack("gran")
    assert names_pack("granit:350m")  # a message of one word has no digits
    assert names_pack("llm-smolm2")
    assert not names_pack("hello2")
    assert not could_be_pack("zzz")
    assert not could_be_pack("tell a story")
    with pytest.raises(ManifestError, match="`edgedecode list` lists the models"):
        find_pack("zzz")


def test_two_files_of_one_name_are_both_named(stores: Stores, made: Made, refusal: Refusal) -> None:
    one = stores.lm_studio("them/tiny-GGUF", "tiny-Q8_0.gguf", made("Q8_0"))
    other = stores.lm_studio("others/tiny-GGUF", "tiny-Q8_0.gguf", made("Q4_0"))
    with pytest.raises(ManifestError, match="2 models are named 'tiny-Q8_0'") as refusal:
        find_pack("tiny-Q8_0")
    assert str(one) in str(refusal.value)
    assert str(other) in str(refusal.value)
    assert find_pack("them/tiny-GGUF") != find_pack("others/tiny-GGUF")
    other.write_bytes(one.read_bytes())  # copies count once
    assert find_pack("tiny-Q8_0") == find_pack(other)


def test_each_file_of_one_name_has_a_name_of_its_own(
    home: Path, made: Made, monkeypatch: pytest.MonkeyPatch, stores: Stores
) -> None:
    """The two files of a folder have one size, so that their sizes do not tell them apart."""
    first = [written(home / "one" / folder / "twin.gguf", made(seed=seed)) for folder, seed in (("a", 3), ("b", 4))]
    second = written(home / "two" / "twin.gguf", made("Q4_0"))
    third = written(home / "two" / "other" / "single.gguf", made("Q4_0"))
    hub = stores.hub("them/tiny-GGUF", "tiny-Q8_0.gguf", made())
    stores.lm_studio("them/tiny-GGUF", "tiny-Q8_0.gguf", made("Q4_0"))
    monkeypatch.setenv("EDGEDECODE_MODELS", os.pathsep.join((str(home / "one"), str(home / "two"))))
    names = {model.path: model.name for model in stored_models()}
    assert len(set(names.values())) == len(names) == 6
    assert [names[path] for path in first] == ["a/twin", "b/twin"]
    assert (names[third], names[hub]) == ("single", str(hub))
    assert {path: find_file(Path(name)) for path, name in names.items()} == {path: path for path in names}
    assert model_named("twin")[0] == second
    second.unlink()
    with pytest.raises(ManifestError, match=r"2 models are named 'twin': a/twin \(folder, .*, b/twin \("):
        model_named("twin")
    with pytest.raises(ManifestError, match="2 models are named 'them/tiny-GGUF:Q8_0'"):
        model_named("them/tiny-GGUF:Q8_0")


def test_a_folder_of_one_file_is_the_file(home: Path, made: Made) -> None:
    path = written(home / "folder" / "a.gguf", made())
    written(home / "folder" / "mmproj-a.gguf", b"no model")
    assert find_pack("folder") == find_pack(path) == find_pack(path.parent)
    written(home / "folder" / "b.gguf", made())
    with pytest.raises(ManifestError, match=r"holds 2 GGUF models \(a.gguf, b.gguf\): give the path of one"):
        find_pack("folder")


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("model", b"", "its manifest names .*sha256-[0-9a-f]{64}, which is not there: pull it again with Ollama"),
        ("tensor", b"x", "its weights are no GGUF file"),
        ("adapter", b"x", "a model with an adapter"),
        ("license", b"x", "names no model"),
    ],
)
def test_an_ollama_model_that_cannot_be_used_says_why(
    kind: str, data: bytes, message: str, stores: Stores, refusal: Refusal
) -> None:
    stores.ollama("library/tiny:135m", data, kind=kind)
    with pytest.raises(ManifestError, match=rf"^tiny:135m \(Ollama\): .*{message}") as refusal:
        find_pack("tiny:135m")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"layers": 3}', b'{"layers": [{"digest": 1}]}', b"\xff\xfe"])
def test_a_damaged_ollama_manifest_is_a_problem_of_one_model(text: bytes, stores: Stores) -> None:
    blob = stores.ollama("library/tiny:135m", b"x")
    written(blob.parents[1] / "manifests" / "host.example" / "library" / "bad" / "1", text)
    assert {model.name: bool(model.problem) for model in stored_models()} == {"bad:1": True, "tiny:135m": False}


def test_a_digest_that_leads_out_of_the_store_is_refused(stores: Stores) -> None:
    blob = stores.ollama("library/tiny:135m", b"x")
    manifest = blob.parents[1] / "manifests" / "host.example" / "library" / "tiny" / "135m"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("sha256:", "sha256:../../"), encoding="utf-8")
    with pytest.raises(ManifestError, match="names no model"):
        find_pack("tiny:135m")


def test_an_interrupted_download_of_the_hub_cache_is_no_model(stores: Stores) -> None:
    stores.hub("owner/repo", "repo-Q8_0.gguf", b"1").resolve().unlink()
    assert names() == {}


def test_a_target_and_its_draft_are_two_files(stores: Stores, made: Made, home: Path) -> None:
    stores.ollama("library/big:1", made("Q8_0"))
    small = stores.lm_studio("them/small-GGUF", "small-Q8_0.gguf", made("Q8_0", layers=1))
    pack = find_pack("big:1", "small-Q8_0")
    assert {*Manifest.load(pack).models} == {"target", "draft"}
    assert find_pack("big:1", small) == pack
    assert {*Manifest.load(find_pack("big:1")).models} == {"target"}
    assert pack.is_dir()
    (home / "pack").mkdir()
    with pytest.raises(ManifestError, match="--draft pairs two GGUF files"):
        find_pack(home / "pack", small)


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("Qwen3-0.6B-Q4_K_M.gguf", "Q4_K_M"),
        ("m.q8_0.gguf", "Q8_0"),
        ("m-IQ4_XS-00001-of-00002.gguf", "IQ4_XS"),
        ("m-BF16.gguf", "BF16"),
        ("m-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("model.gguf", ""),
        ("EQ4.gguf", ""),
    ],
)
def test_a_name_tells_the_type(file: str, kind: str) -> None:
    assert weight_type(file) == kind


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        *(("a.gguf", True), ("a.GGUF", True), ("a-00001-of-00002.gguf", True), ("a-00002-of-00002.gguf", False)),
        *(("mmproj-a.gguf", False), ("a.mmproj-f16.gguf", False), ("mtp-a.gguf", False), ("a.bin", False)),
    ],
)
def test_files_beside_a_model_are_none(file: str, expected: bool) -> None:
    assert is_model_name(file) == expected


def test_a_pack_in_the_hub_cache_runs_without_its_links(stores: Stores) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    for path in sorted(path for path in BUNDLED_PACK.rglob("*") if path.is_file()):
        stores.hub("owner/pack", path.relative_to(BUNDLED_PACK).as_posix(), path.read_bytes())
    before = listing(stores.home)
    root = find_pack("owner/pack")
    assert not any(path.is_symlink() for path in root.rglob("*"))
    assert (root / "target" / "weights.bin").stat().st_nlink == 2
    with edgedecode.load("owner/pack", runtime="onnx") as pair:
        assert pair.root == root == find_pack(next(model.path for model in stored_models()))
    assert listing(stores.home) == before


BAD_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "truncated": (lambda data: data[:-5000], "is truncated or damaged"),
    "cut in its header": (lambda data: data[:200], "is truncated or damaged"),
    "big-endian": (lambda data: data[:4] + data[7:3:-1] + data[8:], "is big-endian"),
    "text": (lambda data: b"no model", "is not a GGUF file"),
    "empty": (lambda data: b"", "is empty"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_of_a_store_is_one_line_and_the_others_are_listed(
    case: str, stores: Stores, made: Made, told: Told, refusal: Refusal
) -> None:
    damage, message = BAD_FILES[case]
    stores.lm_studio("them/good-GGUF", "good-Q8_0.gguf", made())
    stores.lm_studio("them/bad-GGUF", "bad-Q8_0.gguf", damage(made()))
    assert message in refusal("generate", "bad-GGUF", "hi")
    refused = {model["name"]: model["refused"] for model in told("list")["models"]}
    assert refused["them/good-GGUF:Q8_0"] == ""
    assert message in refused["them/bad-GGUF:Q8_0"]


def _split(writer: GGUFWriter) -> None:
    writer.add_uint16("split.count", 3)
    writer.add_uint16("split.no", 0)


OTHER_FILES: dict[str, tuple[File, str]] = {
    "Ollama's own": (
        File(architecture="gemma3", more=lambda writer: writer.add_float32("gemma3.rope.global.freq_base", 1e6)),
        "an older Ollama wrote its fields",
    ),
    "split": (File(more=_split), "is part 1 of 3 of a split file: merge them"),
    "projector": (File(more=lambda writer: writer.add_string("general.type", "mmproj")), "of the type 'mmproj'"),
    "no context": (File(context=0), "does not declare its context length"),
    "pre-tokenizer": (File(pre="no-such"), "has the pre-tokenizer 'no-such' (tokenizer.ggml.pre), supported are"),
    "vocabulary": (File(model="t5"), "has a vocabulary of the kind 't5', supported are gpt2, llama"),
    "template": (File(template="{% if %}"), "the chat template is invalid at line 1"),
    "encoder": (File(architecture="nomic-bert"), "is an encoder (nomic-bert), which does not generate text"),
}


@pytest.mark.parametrize("case", OTHER_FILES)
def test_a_file_that_is_no_whole_model_is_refused_with_the_reason(
    case: str, home: Path, refusal: Refusal, told: Told
) -> None:
    file, message = OTHER_FILES[case]
    write_file(home / "a.gguf", byte_level(), file)
    assert message in refusal("generate", "a.gguf", "hi")
    (model,) = told("list", ".")["models"]
    assert message in model["refused"]


def test_a_tokenizer_beside_a_file_makes_up_for_an_unknown_one(home: Path, told: Told) -> None:
    write_file(home / "a.gguf", byte_level(), File(pre="no-such"))
    assert told("list", ".")["models"][0]["refused"]
    byte_level().save(str(home / "tokenizer.json"))
    assert told("list", ".")["models"][0]["refused"] == ""
    (home / "tokenizer.json").unlink()
    assert told("list", ".")["models"][0]["refused"]


WRONG_TENSORS: dict[str, tuple[dict[str, Floats], str]] = {
    "matrix": (
        {"blk.1.ffn_up.weight": np.zeros((64, 64), np.float32)},
        "blk.1.ffn_up.weight has the shape [64, 64], not [64, 96]",
    ),
    "norm": ({"blk.0.ffn_norm.weight": np.ones(32, np.float32)}, "blk.0.ffn_norm.weight has the shape [32], not [64]"),
    "bias": ({"blk.0.attn_q.bias": np.ones(32, np.float32)}, "blk.0.attn_q.bias has the shape [32], not [64]"),
    "last norm": ({"output_norm.weight": np.ones(32, np.float32)}, "output_norm.weight has the shape [32], not [64]"),
    "unused": ({"blk.0.ffn_extra.weight": np.ones(32, np.float32)}, "it has the tensor blk.0.ffn_extra.weight"),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_a_tensor_of_another_model_is_named(case: str, home: Path, refusal: Refusal) -> None:
    replaced, message = WRONG_TENSORS[case]
    write_file(home / "a.gguf", byte_level(), File(replaced=replaced))
    assert message in refusal("generate", "a.gguf", "hi", "--runtime", "onnx")
