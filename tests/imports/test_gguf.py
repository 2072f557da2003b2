"""`import --target`: packs that refer to GGUF files in place, and one-line refusals of unusable files."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from edgedecode.adapters.adapter_change import add_adapter
from edgedecode.cli import main
from edgedecode.errors import ManifestError
from edgedecode.gguf.contents import BLOCKS, TYPE_NAMES
from edgedecode.pack.integrity import check_files
from edgedecode.pack.manifest import Manifest
from tests.conftest import Refusal
from tests.small_tokenizers import byte_fallback, byte_level

from .files import TEMPLATE, File, write_adapter, write_file

pytestmark = pytest.mark.usefixtures("without_engine")
Change = Callable[[Path], object]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return write_file(tmp_path / "files" / "large.gguf", byte_level())


@pytest.fixture
def draft(target: Path) -> Path:
    return write_file(target.parent / "small.gguf", byte_level(), File(rows=384, layers=1, kind="Q8_0"))


def run(target: Path, *more: str | Path, out: Path | None = None) -> Path:
    """Import with the command; the pack is created next to the folder of the files."""
    pack = out or target.parent.parent / "pack"
    assert main(["import", "--target", str(target), *map(str, more), "--out", str(pack)]) == 0
    return pack


def refused(capsys: pytest.CaptureFixture[str], target: Path, *more: str | Path) -> str:
    """Run an import that must fail; check that it prints one line and leaves no files, and return the line."""
    pack = target.parent.parent / "pack"
    before = sorted(pack.parent.iterdir())
    capsys.readouterr()
    assert main(["import", "--target", str(target), *map(str, more), "--out", str(pack)]) == 1
    assert sorted(pack.parent.iterdir()) == before
    error = capsys.readouterr().err
    assert error.startswith("edgedecode: ")
    assert error.count("\n") == 1
    return error


def test_import_gguf_leaves_the_files_in_place(target: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = run(target, "--draft", draft)
    assert f"target/large.gguf stays at {target}" in capsys.readouterr().out
    manifest = Manifest.load(pack)
    entry = manifest.models["target"]
    assert (entry.architecture, entry.rows, entry.context, entry.layers, entry.kv_heads) == ("llama", 352, 256, 2, 4)
    assert (entry.bits, entry.block_size, entry.head_bits, entry.quantization) == (32, 0, 32, "F32")
    small = manifest.models["draft"]
    assert (small.rows, small.bits, small.block_size, small.head_bits, small.quantization) == (384, 8, 32, 8, "Q8_0")
    assert (entry.license, entry.source, entry.graphs) == ("mit", "large.gguf", {})
    assert entry.parameters == 2 * 352 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 96 * 64 + 2 * 64)
    assert sorted(manifest.files) == ["chat_template.jinja", "tokenizer.json"]
    assert {name: file.path for name, file in manifest.outside.items()} == {
        "target/large.gguf": str(target),
        "draft/small.gguf": str(draft),
    }
    assert manifest.located("target").gguf == str(target)
    assert manifest.vocabulary_size == 323
    assert manifest.generation.end_token_ids == (320,)
    assert manifest.generation.eos_token == "<|end|>"
    assert (pack / "chat_template.jinja").read_text() == TEMPLATE
    assert entry.notes[0] == "the tokenizer was built from the vocabulary inside large.gguf"
    assert "not checked with llama.cpp" in entry.notes[1]
    check_files(manifest, pack, full=True)


@pytest.mark.parametrize("how", ["moved", "changed", "truncated", "link"])
def test_check_files_names_a_moved_or_changed_gguf_file(target: Path, how: str) -> None:
    pack = run(target)
    content = target.read_bytes()
    if how == "moved":
        target.rename(target.with_name("other.gguf"))
    elif how == "link":
        target.rename(target.with_name("other.gguf"))
        target.symlink_to("other.gguf")
    else:
        target.write_bytes(content[:-1] + (b"" if how == "truncated" else b"\xff"))
    with pytest.raises(ManifestError, match=f"{target}.* import it again") as caught:
        check_files(Manifest.load(pack), pack, full=True)
    assert "\n" not in str(caught.value)


def test_import_gguf_with_copy_makes_a_movable_pack(target: Path, draft: Path) -> None:
    pack = run(target, "--draft", draft, "--copy")
    shutil.rmtree(target.parent)
    moved = pack.rename(pack.with_name("moved"))
    manifest = Manifest.load(moved)
    assert not manifest.outside
    assert {"target/model.gguf", "draft/model.gguf"} <= set(manifest.files)
    check_files(manifest, moved, full=True)


def test_import_gguf_follows_links(target: Path, tmp_path: Path) -> None:
    """In the hub's cache, the files behind the links have other names."""
    link = tmp_path / "link.gguf"
    link.symlink_to(target)
    entry = Manifest.load(run(link, out=tmp_path / "pack")).models["target"]
    assert (entry.source, entry.gguf) == ("link.gguf", "target/large.gguf")


def test_import_gguf_reads_sampling_defaults(tmp_path: Path) -> None:
    def more(writer: GGUFWriter) -> None:
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_float32("general.sampling.top_p", 7.0)  # out of range, so it is ignored
        writer.add_float32("general.sampling.min_p", 0.25)
        writer.add_float32("general.sampling.penalty_repeat", 1.5)

    (tmp_path / "files").mkdir()
    file = write_file(tmp_path / "files" / "a.gguf", byte_level(), File(more=more))
    found = Manifest.load(run(file)).generation
    assert found.sampling == {"temperature": 0.5, "top_k": 20, "min_p": 0.25, "repetition_penalty": 1.5}


def test_import_gguf_uses_an_equal_tokenizer_json_next_to_the_file(target: Path) -> None:
    tokenizer_json = target.with_name("tokenizer.json")
    byte_level().save(str(tokenizer_json))
    manifest = Manifest.load(pack := run(target))
    assert (pack / "tokenizer.json").read_bytes() == tokenizer_json.read_bytes()
    assert manifest.models["target"].notes[0] == "the tokenizer is the tokenizer.json next to it"
    other = byte_level()
    other.add_tokens(["<more>"])
    other.save(str(tokenizer_json))
    entry = Manifest.load(run(target, out=pack.with_name("second"))).models["target"]
    assert "next to it differs (id 323 is '<more>' there and None in the file)" in entry.notes[0]


def test_import_gguf_falls_back_to_the_tokenizer_json_next_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "files").mkdir()
    file = write_file(tmp_path / "files" / "a.gguf", byte_level(), File(pre="no-such"))
    assert "has the pre-tokenizer 'no-such'" in refused(capsys, file)
    byte_level().save(str(file.with_name("tokenizer.json")))
    assert Manifest.load(run(file)).vocabulary_size == 323
    file.with_name("tokenizer.json").write_text("{}")
    shutil.rmtree(tmp_path / "pack")
    assert "tokenizer.json cannot be used" in refused(capsys, file)


def test_a_draft_keeps_its_own_tokenizer(target: Path, draft: Path) -> None:
    other = write_file(target.with_name("other.gguf"), byte_fallback(), File(eos="<s>"))
    models = Manifest.load(run(target, "--draft", other)).models
    assert (models["target"].own_tokenizer, models["draft"].own_tokenizer) == ("", "draft/tokenizer.json")
    pack = run(target, "--draft", draft, out=target.parent.parent / "same")
    assert Manifest.load(pack).models["draft"].own_tokenizer == ""


def test_an_imported_pack_takes_adapters(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pirate = write_adapter(target.with_name("pirate.gguf"))
    output_lora = {
        "output.weight.lora_a": np.ones((2, 64), np.float32),
        "output.weight.lora_b": np.ones((352, 2), np.float32),
    }
    other = write_adapter(target.with_name("other.gguf"), modules=("attn_output",), rank=8, more=output_lora)
    pack = run(target)
    for name, source in (("pirate", pirate), ("o-1", other)):
        add_adapter(pack, name, source)
    manifest = Manifest.load(pack)
    entry = manifest.adapters["pirate"]
    assert (entry.role, entry.rank, entry.alpha, entry.invocation) == ("target", 4, 6.0, (5, 6))
    assert entry.modules == ("q_proj", "down_proj")
    assert (manifest.adapters["o-1"].rank, manifest.adapters["o-1"].modules) == (8, ("o_proj", "output"))
    capsys.readouterr()
    assert main(["show", "--full", str(pack), "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "modules q_proj, down_proj" in " ".join(shown.split())
    assert "models.target.graphs" not in shown


def half_product(path: Path) -> Path:
    return write_adapter(path, more={"blk.1.attn_q.weight.lora_a": np.ones((4, 64), np.float32)})


def norm_weight(path: Path) -> Path:
    return write_adapter(path, more={"blk.1.attn_norm.weight": np.ones(64, np.float32)})


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: write_adapter(path, architecture="qwen2"), "made for a model of the architecture 'qwen2'"),
        (
            lambda path: write_adapter(path, hidden=32),
            "changes blk.0.attn_q.weight by 32×4 and 4×32, in the model target it is 64×64",
        ),
        (lambda path: write_adapter(path, modules=("attn_qkv",)), "which is not a matrix of the model target"),
        (lambda path: write_adapter(path, kind="dora"), "is not a LoRA adapter"),
        (half_product, "half of a product for blk.1.attn_q.weight"),
        (norm_weight, "holds blk.1.attn_norm.weight, which is not a LoRA matrix"),
        (lambda path: path.write_bytes(b"GGUF"), "truncated"),
        (lambda path: write_file(path, byte_level()), "is not a LoRA adapter"),
    ],
)
def test_adapters_of_another_model_are_refused(
    write: Change, message: str, target: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    path = target.with_name("lora.gguf")
    write(path)
    pack = run(target)
    capsys.readouterr()
    assert message in refusal("adapter", "add", str(pack), f"a={path}")


def file_with(**file: object) -> Change:
    return lambda path: write_file(path, byte_level(), File(**file))  # type: ignore[arg-type]


def patched(place: int, form: str, value: int) -> Change:
    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        struct.pack_into(form, content, place, value)
        path.write_bytes(content)

    return change


def encoder(writer: GGUFWriter) -> None:
    writer.add_causal_attention(False)


def pooled(writer: GGUFWriter) -> None:
    writer.add_uint32("llama.pooling_type", 1)


def split(writer: GGUFWriter) -> None:
    writer.add_uint16("split.count", 3)


def projector(writer: GGUFWriter) -> None:
    writer.add_type("mmproj")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "truncated or damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "truncated or damaged"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"PK" + path.read_bytes()[2:]), "is not a GGUF file"),
        (patched(4, ">I", 3), "is big-endian"),
        (patched(4, "<I", 4), "GGUF version 4"),
        (file_with(more=split), "part 1 of 3 of a split file"),
        (file_with(more=projector), "of the type 'mmproj'"),
        (file_with(more=encoder), "is an encoder (llama)"),
        (file_with(more=pooled), "is an encoder (llama)"),
        (file_with(architecture="bert"), "is an encoder (bert)"),
        (file_with(template="{% for %}"), "chat template is invalid"),
        (file_with(context=0), "does not declare its context length"),
        (file_with(pre="no-such"), "has the pre-tokenizer 'no-such'"),
        (write_adapter, "is an adapter: import its model"),
        (lambda path: path.unlink(), "there is no file"),
        (lambda path: path.rename(path.with_name("x")) and path.mkdir(), "is a folder: give the GGUF file in it"),
    ],
)
def test_import_gguf_refuses_unusable_files(
    change: Change, message: str, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(target)
    assert message in refused(capsys, target)


def test_import_gguf_refuses_a_file_without_weights(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = GGUFWriter(None, "llama")
    writer.add_token_list(["a"])
    writer.write_header_to_file(target)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    assert "holds a vocabulary and no weights" in refused(capsys, target)


def test_import_gguf_refuses_an_existing_folder(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = run(target)
    kept = (pack / "edgedecode.json").read_bytes()
    assert "exists and is not empty" in refused(capsys, target)
    assert (pack / "edgedecode.json").read_bytes() == kept


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one of the arguments --target --onnx is required"),
        (["--target", "a", "--onnx", "b"], "not allowed with argument"),
        (["--onnx", "b", "--draft", "a"], "--draft: it goes with --target"),
        (["--target", "a", "--draft-onnx", "b"], "--draft-onnx: it goes with --onnx"),
    ],
)
def test_import_gguf_refuses_bad_arguments(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["import", *words, "--out", str(tmp_path / "pack")])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_gguf_types_have_a_name_and_a_size() -> None:
    assert set(TYPE_NAMES) == set(BLOCKS)


def test_import_gguf_json_is_one_line(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(target, "--json", "--name", "mine", "--license", "other")
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert value["models"]["target"]["quantization"] == "F32"
    assert value["models"]["target"]["license"] == "other"


def test_import_gguf_needs_no_framework(target: Path, draft: Path) -> None:
    """torch, ONNX, the engines and the gguf package cannot be imported in the child process."""
    missing = ["torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "gguf", "llama_cpp", "safetensors"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\n"
        "from edgedecode.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["import", "--target", target, "--draft", draft, "--out", target.parent.parent / "pack"]
    child = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert set(Manifest.load(target.parent.parent / "pack").models) == {"target", "draft"}
