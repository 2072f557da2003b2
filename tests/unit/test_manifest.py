"""The manifest: round trips through JSON, and one-line errors for invalid content."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from edgedecode.errors import ManifestError
from edgedecode.pack.entries import ActivationsEntry, ActivationsWay, AdapterEntry, FileEntry, OutsideFile, ProductError
from edgedecode.pack.manifest import MANIFEST_NAME, VERSION, Generation, Graph, Manifest, ModelEntry, TrimmedDraft
from edgedecode.typed_json import JsonValue

Document = dict[str, "JsonValue"]


def manifest() -> Manifest:
    graph = Graph("target/base.onnx", inputs=("input_ids",), outputs=("logits",), capabilities=("tree", "rows"))
    activations = ActivationsEntry(
        asked="auto",
        wide=("head",),
        products={"head": ProductError(0.3, 0.001)},
        ways={"8": ActivationsWay(0.9), "16": ActivationsWay(0.99)},
        text="1024 tokens",
        kernels="avx2",
    )
    entry = ModelEntry(
        architecture="llama",
        rows=8192,
        context=2048,
        hidden_size=256,
        layers=4,
        kv_heads=2,
        head_size=32,
        parameters=10_000_000,
        weights="target/weights.bin",
        graphs={"base": graph},
        bits=8,
        block_size=32,
        head_bits=8,
        license="apache-2.0",
        source="somebody/something",
        kernel_noise=0.05,
        parity={"max_error": 1e-4},
        activations=activations,
    )
    trimmed = TrimmedDraft(
        replace(graph, file="draft/trim.onnx", token_ids="draft/trim.ids"),
        "onnx",
        0.99,
        speed_up=1.1,
        speed_up_full=1.0,
    )
    draft = replace(entry, weights="draft/weights.bin", graphs={}, kernel_noise=None, trimmed=trimmed, activations=None)
    adapter = AdapterEntry(
        "adapters/pirate.gguf", role="target", rank=8, alpha=16.0, modules=("q_proj",), invocation=(3,)
    )
    names = [
        adapter.file,
        "tokenizer.json",
        "chat.jinja",
        "target/base.onnx",
        "target/weights.bin",
        "draft/weights.bin",
        *trimmed.graph.files,
    ]
    return Manifest(
        name="pack",
        created_by="a test",
        tokenizer="tokenizer.json",
        tokenizer_digest="ab" * 32,
        vocabulary_size=8192,
        chat_template="chat.jinja",
        generation=Generation(
            end_token_ids=(2, 0), eos_token="</s>", sampling={"temperature": 0.7, "top_k": 40}, max_tokens=100
        ),
        models={"target": entry, "draft": draft},
        files={name: FileEntry(nbytes=10, sha256="cd" * 32) for name in names},
        adapters={"pirate": adapter},
    )


def document() -> Document:
    value: Document = json.loads(manifest().to_json())
    return value


def leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of every object."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield (*path, key)
            yield from leaves(child, (*path, key))


def changed(path: tuple[str, ...], value: JsonValue = None, *, remove: bool = False) -> Document:
    copied = document()
    inner = copied
    for key in path[:-1]:
        child = inner[key]
        assert isinstance(child, dict)
        inner = child
    if remove:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copied


LEAVES = list(leaves(document()))
NUMBERS = {"temperature", "top_p", "min_p", "kernel_noise", "repetition_penalty"}
OPTIONAL_FIGURES = {f"{name}{suffix}" for name in ("speed_up", "mbsu", "measured") for suffix in ("", "_full")}
OPTIONAL_FIGURES |= {"bound", "step_share"}
FIGURES = {"acceptance", "acceptance_full", *OPTIONAL_FIGURES}
OPTIONAL = NUMBERS | {"chat_template", "bos_token", "eos_token", "top_k", "max_tokens"}
OPTIONAL |= {
    *OPTIONAL_FIGURES,
    *("outside", "adapters", "switching", "invocation", "config", "kv_type", "lora_rank", "lora_modules"),
    *("width", "slots", "compiled", "window", "quantization", "trimmed", "token_ids", "coverage"),
    *("runtime", "activations", "kernels", "calibration", "categories", "notes", "gguf", "equality"),
    *("gguf_plan", "parity", "ways", "text", "recommended", "length", "warnings", "taps", "own_tokenizer"),
}


def test_manifest_round_trips_through_json() -> None:
    text = manifest().to_json()
    assert Manifest.from_json(json.loads(text)) == manifest()
    assert Manifest.from_json(json.loads(text)).to_json() == text


def test_manifest_names_a_field_of_the_wrong_type() -> None:
    for path, wrong in product(LEAVES, ([{}], True, -1.5)):
        if path[-2:-1] == ("parity",) and wrong == -1.5:
            continue  # any finite number is a parity figure
        if path[-1] in NUMBERS | {"alpha", *FIGURES} and wrong == -1.5:
            continue
        if path[-1] == "recommended" and wrong is True:
            continue
        with pytest.raises(ManifestError) as refusal:
            Manifest.from_json(changed(path, wrong))
        assert path[-1] in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_manifest_names_a_missing_field() -> None:
    named = {("models", "target", "graphs"), ("models", "target", "activations", "ways"), ("adapters",)}
    free = named | {("models", "target", "parity"), ("models", "draft", "parity")}
    for path in LEAVES:
        missing = changed(path, remove=True)
        needed = path[:3] == ("models", "draft", "trimmed") and path[-1] in {"token_ids", "runtime"}
        if (path[-1] in OPTIONAL and not needed) or path[:-1] in free or path in {("head",), ("thinking",)}:
            Manifest.from_json(missing)
        elif path == ("models", "draft"):
            assert set(Manifest.from_json(missing).models) == {"target"}  # a pack may have a target only
        else:
            with pytest.raises(ManifestError) as refusal:
                Manifest.from_json(missing)
            assert path[-1] in str(refusal.value)
            assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "zip", "format is 'zip', not 'edgedecode-pack'"),
        (("version",), VERSION + 1, f"version {VERSION + 1}, .* reads up to {VERSION}: upgrade edgedecode"),
        (
            ("models", "target", "activations", "wide"),
            ["head", "tail"],
            "activations: wide names 'tail', which is not among its products",
        ),
        (("adapters", "pirate", "file"), "adapters/other.gguf", "adapters/other.gguf"),
        (("adapters", "pirate", "file"), "/abs.gguf", "/abs.gguf"),
        (("adapters", "pirate", "role"), "judge", "judge"),
    ],
    ids=[
        *("another format", "a newer version", "wide activations that are no products"),
        *("an adapter's unlisted file", "an adapter's file outside", "an adapter of an unknown model"),
    ],
)
def test_manifest_refuses(path: tuple[str, ...], value: JsonValue, message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Manifest.from_json(changed(path, value))


OUTSIDE_PATHS = [
    *("/etc/passwd", "../secret", "a/../../secret", "..", "a\\b", "..\\secret", "C:secret", "C:\\secret", "C:/secret"),
    *("a\0b", "", ".", "./", "a\nb", "\ud800", "//server/share", "\\\\server\\share"),
]


@pytest.mark.parametrize("name", OUTSIDE_PATHS, ids=ascii)
def test_manifest_refuses_a_path_outside_the_pack(name: str) -> None:
    target = ("models", "target")
    named = (("tokenizer",), ("chat_template",), (*target, "weights"), (*target, "graphs", "base", "file"))
    listed = changed(("files", name), {"nbytes": 1, "sha256": "ab"})
    for value in (listed, *(changed(path, name) for path in named)):
        with pytest.raises(ManifestError, match="is not a plain path inside the pack: refused") as refusal:
            Manifest.from_json(value)
        str(refusal.value).encode()  # printable anywhere
        assert "\n" not in str(refusal.value)


def test_manifest_refuses_a_named_file_without_a_digest() -> None:
    with pytest.raises(ManifestError, match=r"no size and digest for target/base\.onnx"):
        Manifest.from_json(changed(("files", "target/base.onnx"), remove=True))


def write(folder: Path, text: str) -> Path:
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("version https://git-lfs.example/spec/v1\noid sha256:0\n", "is Git LFS's pointer to the file"),
        ("\n <!doctype html>", "is a web page, not the file"),
        ("{", "is not JSON"),
        ("nonsense", "is not JSON"),
        ('{"a": 1}}', "is not JSON"),
        ('{"format": ' + "9" * 5000 + "}", "is not JSON"),  # Python refuses to read such numbers
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("[]", "expected object, got array"),
        ("null", "expected object, got null"),
        ("{}", "manifest: object missing required field format"),
        ('{"format": NaN}', "manifest.format is 'nan': expected str, got float"),
    ],
    ids=lambda value: value[:12],
)
def test_load_reports_an_invalid_manifest_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ManifestError, match=message) as refusal:
        Manifest.load(write(tmp_path, text))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_load_reports_invalid_utf8(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(b"\xff\xfe{}")
    with pytest.raises(ManifestError, match="cannot be read"):
        Manifest.load(tmp_path)


def test_load_refuses_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=f"is not a pack, it has no {MANIFEST_NAME}"):
        Manifest.load(tmp_path)
    with pytest.raises(ManifestError, match="is not a folder"):
        Manifest.load(tmp_path / "absent")
    (tmp_path / MANIFEST_NAME).mkdir()
    with pytest.raises(ManifestError, match="it is not a regular file"):
        Manifest.load(tmp_path)


ELSEWHERE = "/models/qwen/model.onnx.data"


def manifest_importing() -> Manifest:
    """Return a manifest with a target whose weights are external."""
    value = manifest()
    target = replace(value.models["target"], weights="target/model.onnx.data")
    files = {name: entry for name, entry in value.files.items() if name != "target/weights.bin"}
    outside = {target.weights: OutsideFile(ELSEWHERE, nbytes=1234, sha256="ef" * 32)}
    return replace(value, models={**value.models, "target": target}, files=files, outside=outside)


def test_manifest_with_external_weights_round_trips_through_json() -> None:
    text = manifest_importing().to_json()
    assert Manifest.from_json(json.loads(text)) == manifest_importing()
    assert Manifest.from_json(json.loads(text)).to_json() == text


def test_located_returns_the_path_of_external_weights() -> None:
    value = manifest_importing()
    assert value.located("target").weights == ELSEWHERE
    assert value.located("draft").weights == "draft/weights.bin"
    assert (value.weights_nbytes("target"), value.weights_nbytes("draft")) == (1234, 10)


@pytest.mark.parametrize(
    "path",
    [
        *("model.onnx.data", "../model.onnx.data", "/a/../model.onnx.data", "/models/other.data", ""),
        "/a\n/model.onnx.data",
    ],
)
def test_manifest_refuses_an_external_path_that_is_relative_or_renamed(path: str) -> None:
    value: Document = json.loads(manifest_importing().to_json())
    value["outside"] = {"target/model.onnx.data": {"path": path, "nbytes": 1, "sha256": "ab"}}
    with pytest.raises(ManifestError, match=r"outside\.target/model\.onnx\.data\.path .*: refused") as refusal:
        Manifest.from_json(value)
    assert "\n" not in str(refusal.value)


def test_located_adapter_returns_the_path_of_an_adapter() -> None:
    value = manifest()
    assert value.located_adapter("pirate") == value.adapters["pirate"]
    with pytest.raises(ManifestError, match="has no adapter 'sailor'; it has: pirate"):
        value.located_adapter("sailor")
    outside = {"adapters/pirate.gguf": OutsideFile("/elsewhere/pirate.gguf", nbytes=1, sha256="ab")}
    files = {name: file for name, file in value.files.items() if name not in outside}
    moved = Manifest.from_json(json.loads(replace(value, files=files, outside=outside).to_json()))
    assert moved.located_adapter("pirate").file == "/elsewhere/pirate.gguf"


def test_located_returns_the_path_of_an_external_gguf_file() -> None:
    value = manifest()
    target = replace(value.models["target"], weights="target/m.gguf", gguf="target/m.gguf", graphs={})
    outside = {"target/m.gguf": OutsideFile("/elsewhere/m.gguf", nbytes=7, sha256="ab")}
    moved = replace(value, models={**value.models, "target": target}, outside=outside)
    found = Manifest.from_json(json.loads(moved.to_json()))
    assert found.located("target").gguf == found.located("target").weights == "/elsewhere/m.gguf"
    assert found.weights_nbytes("target") == 7
