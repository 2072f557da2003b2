"""GGUF files given in place of a pack: they run on our own kernels, without an import."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions, SwitchOptions
from edgedecode.arrays import FloatArray
from edgedecode.cli import main
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.registry import find_runtime
from edgedecode.library.find import find_pack, names_pack
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Manifest
from edgedecode.runtimes.onnx.gguf import kv_scales
from edgedecode.runtimes.onnx.kernels import serving
from edgedecode.runtimes.onnx.kernels.trial import tried
from tests.conftest import Refusal
from tests.small_tokenizers import byte_level, large_byte_level
from tests.test_light_import import HEAVY, loaded_after

from .files import HEAD_SIZE, File, tensors, write_file

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.skipif(tried() is None, reason="GGUF files need edgedecode's own kernels")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kv_scales, "_KEPT", {})
    return write_file(tmp_path / "a.gguf", byte_level(), File(kind="Q8_0"))


def generate(
    pack: Path | str,
    *,
    drafter: str = "none",
    tokens: int = 60,
    kv_type: str | None = None,
    prompt: str = "the quick fox the quick fox",
) -> str:
    options = SessionOptions(drafter=drafter, sampling=SamplingOptions(temperature=0.0))
    with edgedecode.load(pack, runtime="onnx", kv_type=kv_type) as pair, pair.session(options) as session:
        return session.generate(prompt, max_tokens=tokens).text


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_drafts_change_nothing(kind: str, model: Path) -> None:
    path = write_file(model.with_name("b.gguf"), byte_level(), File(kind=kind))
    plain = generate(path)
    assert plain
    assert generate(path, drafter="suffix") == plain


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_logits_are_those_of_the_file_as_floats(kind: str, model: Path) -> None:
    quantized = write_file(model.with_name("b.gguf"), byte_level(), File(kind=kind))
    number = GGMLQuantizationType[kind]
    rounded = {
        name: dequantize(quantize(values, number), number) - values
        for name, values in tensors(File()).items()
        if values.ndim == 2
    }
    floats = write_file(model.with_name("c.gguf"), byte_level(), File(added=rounded))
    found, expected = logits_of(quantized), logits_of(floats)
    assert np.abs(found - expected).max() < 1e-3 * expected.std()


def logits_of(path: Path, *needs: str) -> FloatArray:
    pack = find_pack(path)
    manifest = Manifest.load(pack)
    request = ModelRequest(manifest.located("target"), pack, "target", manifest.vocabulary_size, Budget(), threads=1)
    opened = find_runtime("onnx").open(replace(request, needs=needs))
    state = opened.new_state(64)
    logits = opened.forward([7 * token % 300 for token in range(64)], state, rows="all").logits.copy()
    state.close()
    opened.close()
    return logits


def test_every_form_of_the_command_line_takes_a_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-n", "8", "--temp", "0", "--runtime", "onnx"]
    assert main(["generate", "-m", str(model), "-p", "the fox", *words]) == 0
    first = capsys.readouterr().out
    assert main(["generate", str(model), "the fox", *words]) == 0
    assert capsys.readouterr().out == first != ""
    assert main(["show", str(model)]) == 0
    assert "Q8_0" in capsys.readouterr().out
    assert names_pack(str(model))


def test_a_file_in_the_current_folder_is_named_without_a_path(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    assert names_pack("a.gguf")
    assert generate("a.gguf") == generate(model)


def test_the_pack_of_a_file_is_made_once_and_again_when_the_file_changes(model: Path) -> None:
    pack = find_pack(model)
    made = (pack / "edgedecode.json").stat().st_mtime_ns
    assert find_pack(str(model)) == pack
    assert (pack / "edgedecode.json").stat().st_mtime_ns == made
    text = generate(model)
    write_file(model, byte_level(), File(kind="Q8_0", seed=4))
    assert find_pack(model) != pack
    assert not pack.exists()
    assert generate(model) != text


FOUND = """
import sys
from edgedecode.library.find import find_pack
from edgedecode.memory.process_memory import memory_now
find_pack(sys.argv[1])
print(memory_now().anonymous)
"""


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="measures with /proc/self/smaps_rollup")
def test_making_the_pack_of_a_file_keeps_none_of_its_vocabulary_in_memory(model: Path) -> None:
    """40,000 tokens and their merges take 45 MB while the pack is made, the importer's modules 14 MB."""
    inner = large_byte_level()
    large = write_file(model.with_name("b.gguf"), inner, File(kind="Q8_0", rows=inner.get_vocab_size(), layers=1))
    words = [sys.executable, "-c", FOUND, str(large)]
    first, later = (int(subprocess.run(words, capture_output=True, check=True).stdout) for _ in range(2))
    assert later < first < later + 30_000_000


def test_a_file_of_any_name_is_recognized_by_its_content(model: Path) -> None:
    blob = model.rename(model.with_name("sha256-0123"))
    assert find_pack(blob).is_dir()


def test_eight_bit_keys_and_values_are_close_to_floats(model: Path) -> None:
    expected, found = logits_of(model), logits_of(model, "kv:int8")
    error = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    assert 0 < error < 0.05
    texts = {generate(model, drafter=drafter, kv_type="int8") for drafter in ("none", "suffix")}
    assert len(texts) == 1
    sizes = []
    for kv_type in ("float32", "int8"):
        with edgedecode.load(model, runtime="onnx", kv_type=kv_type) as pair:
            sizes.append(pair.target.card.kv_nbytes)
    assert sizes[0] == 4 * sizes[1] > 0


def test_the_plan_counts_eight_bit_keys_and_values(model: Path) -> None:
    planned = edgedecode.plan(model, runtime="onnx")
    assert planned.least_with_int8 is not None
    assert planned.memory.least_running - planned.least_with_int8 > 100_000


@pytest.mark.parametrize("kept", [b"", b"no array"])
def test_scales_are_measured_once_or_where_what_was_kept_is_damaged(
    kept: bytes, model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "edgedecode.user_notices")
    first = logits_of(model, "kv:int8")
    (file,) = (model.parent / "cache" / "tiles").glob("*.kv1.npy")
    for damaged in (False, True):
        monkeypatch.setattr(kv_scales, "_KEPT", {})
        caplog.clear()
        if damaged:
            file.write_bytes(kept)
        assert np.array_equal(logits_of(model, "kv:int8"), first)
        assert ("are measured once" in caplog.text) is damaged


def test_files_that_no_manifest_lists_share_no_scales(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no digest; a second one of the same shape has its own scales, and the first one's are kept."""
    monkeypatch.setattr(kv_scales, "weights_digest", lambda root, path: "")
    monkeypatch.setattr(serving, "weights_digest", lambda root, path: "")
    other = write_file(model.with_name("b.gguf"), byte_level(), File(kind="Q8_0", seed=4))
    found = [logits_of(path, "kv:int8") for path in (model, other, model)]
    first, second = kv_scales._KEPT.values()
    assert not np.array_equal(first, second)
    assert np.array_equal(found[0], found[2])
    monkeypatch.setattr(kv_scales, "_KEPT", {})
    assert np.array_equal(logits_of(other, "kv:int8"), found[1])


@pytest.fixture
def pack(model: Path) -> Path:
    """A pair of two files, of one with a layer less."""
    draft = write_file(model.with_name("b.gguf"), byte_level(), File(kind="Q4_0", layers=1))
    out = model.with_name("pack")
    assert main(["import", "--target", str(model), "--draft", str(draft), "--out", str(out)]) == 0
    return out


def test_the_models_of_two_files_switch_and_are_calibrated(pack: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"the quick fox {each}"]}) + "\n" for each in range(40)))
    assert main(["calibrate", str(pack), "--prompts", str(prompts), "-n", "4", "--runtime", "onnx"]) == 0
    curve = Manifest.load(pack).switching
    assert curve.points
    options = SessionOptions(
        sampling=SamplingOptions(temperature=0.0), details=SessionDetails(switch=SwitchOptions(threshold=100.0))
    )
    with edgedecode.load(pack, runtime="onnx") as pair, pair.session(options) as session:
        answer = session.generate("the quick fox", max_tokens=12)
    assert len(answer.tokens) == 12
    assert answer.text == generate(pack.with_name("b.gguf"), prompt="the quick fox", tokens=12)


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "FILE", "hi", "--mode", "switch"],
        ["generate", "FILE", "hi", "--drafter", "model"],
        ["calibrate", "FILE", "--prompts", "PROMPTS"],
        ["trim", "FILE"],
    ],
)
def test_a_draft_is_missed_in_one_line_that_fits_a_file(
    words: list[str], model: Path, tmp_path: Path, refusal: Refusal
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"the quick fox {each}"]}) + "\n" for each in range(40)))
    line = refusal(*({"FILE": str(model), "PROMPTS": str(prompts)}.get(word, word) for word in words))
    wanted = "not GGUF files: make a pack" if words[0] == "trim" else "for a GGUF file name one with --draft"
    assert wanted in line


def test_show_names_the_types_of_the_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_file(model.with_name("b.gguf"), byte_level(), File(kind="Q5_0"))
    assert main(["show", str(path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "(Q5_0; head and embedding 5 bits)" in printed
    assert "int5" not in printed
    assert printed.endswith("--full shows all, with 1 note")


def test_a_draft_that_is_a_file_is_not_trimmed(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx_ir", reason="onnx_ir is not installed")
    capsys.readouterr()
    assert main(["trim", str(pack)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "has no ONNX graph: only graphs can be trimmed, not GGUF files: make a pack with `edgedecode export" in line


@pytest.mark.parametrize("drafter", ["none", "model"])
def test_answers_follow_a_schema(drafter: str, pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance", reason="llguidance is not installed")
    schema = {"type": "object", "properties": {"size": {"enum": [1, 2]}}, "required": ["size"]}
    capsys.readouterr()
    words = ["--json-schema", json.dumps(schema), "-n", "60", "--temp", "0", "--drafter", drafter, "--runtime", "onnx"]
    assert main(["generate", "-m", str(pack), "-p", "the fox", *words]) == 0
    assert json.loads(capsys.readouterr().out)["size"] in (1, 2)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4000])


def _other_architecture(path: Path) -> None:
    write_file(path, byte_level(), File(architecture="stablelm"))


def _unused_tensor(path: Path) -> None:
    write_file(
        path, byte_level(), File(more=lambda writer: writer.add_tensor("blk.0.extra.weight", np.ones(4, np.float32)))
    )


def _scaled(kind: str, factor: float, base: float = 10000.0) -> Callable[[Path], object]:
    """Return what writes a file whose rotary embedding is scaled so."""

    def more(writer: GGUFWriter) -> None:
        writer.add_string("llama.rope.scaling.type", kind)
        writer.add_float32("llama.rope.scaling.factor", factor)
        writer.add_float32("llama.rope.freq_base", base)

    return lambda path: write_file(path, byte_level(), File(more=more))


def _replaced(name: str, shape: tuple[int, ...], value: float = 1.0) -> Callable[[Path], object]:
    values = {name: np.full(shape, value, np.float32)}
    return lambda path: write_file(path, byte_level(), File(replaced=values))


def _damaged_scale(path: Path) -> None:
    tensor = next(each for each in GGUFReader(path, "r+").tensors if each.name == "blk.1.ffn_up.weight")
    tensor.data[3, :2] = (0x00, 0x7E)  # a float16 that is no number


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "truncated or damaged"),
        (lambda path: path.write_bytes(b"no model"), "is not a GGUF file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (_other_architecture, "the architecture 'stablelm' is none of"),
        (_damaged_scale, "blk.1.ffn_up.weight has scales that are not finite"),
        (_unused_tensor, "it has the tensor blk.0.extra.weight"),
        (_scaled("yarn", -1.0), "its rope.scaling.factor is -1.0"),
        (_scaled("linear", float("nan")), "its rope.scaling.factor is nan"),
        (_scaled("yarn", 4.0, 1.0), "for which YaRN is not defined"),
        (_replaced("rope_freqs.weight", (HEAD_SIZE // 2,), 0.0), "rope_freqs.weight has values that are no factors"),
        (_replaced("blk.0.ffn_down.weight", (96, 40)), "blk.0.ffn_down.weight has the shape [40, 96], not"),
        (lambda path: write_file(path, byte_level(), File(architecture="qwen3")), "no tensor blk.0.attn_q_norm.weight"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    damage: Callable[[Path], object], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(model)
    assert main(["generate", "-m", str(model), "-p", "hi", "--runtime", "onnx"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("edgedecode: ")
    assert message in line


def test_a_scaling_of_0_is_none(model: Path) -> None:
    plain = generate(model)
    _scaled("linear", 0.0)(model)
    assert generate(model) == plain


def test_packs_of_files_are_made_without_frameworks() -> None:
    assert not loaded_after("import edgedecode.export.imports.gguf_file") & set(HEAVY)
