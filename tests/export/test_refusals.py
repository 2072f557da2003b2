"""`export` refuses unusable models before any work, in one line with advice, and leaves no files."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from edgedecode.cli import main
from edgedecode.errors import EdgeDecodeError, ExportError, IncompatiblePair, RuntimeUnavailable
from edgedecode.export import frameworks
from edgedecode.export.graph.quantize import Scheme
from edgedecode.export.graph.recipe import Recipe
from edgedecode.export.pair_export import PairRequest, check_pair
from edgedecode.pack.manifest import Manifest
from tests.small_tokenizers import byte_fallback, byte_level

from .conftest import export, recipe
from .tiny import TinyModel, write_model

pytestmark = pytest.mark.export


@pytest.fixture
def model(llama: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may change."""
    return Path(shutil.copytree(llama, tmp_path / "model"))


def configure(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def rewrite(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return apply


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def nonsense_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"{}")


def only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def index_without_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    shards = {"model.norm.weight": "model-00001-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def lacks_a_shard(folder: Path) -> None:
    shards = {"model.norm.weight": "model-00001-of-00002.safetensors", "lm_head.weight": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def index_of(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text) and None


def damaged_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def missing_tensor(tensors: dict[str, np.ndarray]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def not_a_number(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "unknown architecture": (
        configure(architectures=["MambaForCausalLM"]),
        "MambaForCausalLM; supported are Ernie4_5For",
    ),
    "no architecture": (configure(architectures=None), "model_type 'llama'; supported are Ernie4_5ForCausalLM"),
    "own Python code": (
        configure(architectures=["OwnForCausalLM"], auto_map={"AutoModel": "x.Y"}),
        "OwnForCausalLM that needs its own Python code",
    ),
    "bidirectional attention": (configure(use_bidirectional_attention=True), "attends in both directions"),
    "fewer layers than the file": (configure(num_hidden_layers=1), "has 9 tensors unknown to its config.json"),
    "separate head in a tied model": (
        configure(tie_word_embeddings=True),
        "has a different lm_head.weight: set tie_word",
    ),
    "already quantized": (configure(quantization_config={"quant_method": "gptq"}), "already quantized .gptq.*original"),
    "odd heads": (configure(head_dim=24), "head size of 24.*multiple of 16"),
    "odd blocks": (configure(intermediate_size=100), "intermediate_size 100.*block size 32.*--bits 16"),
    "unsupported rope": (
        configure(rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
        "'dynamic'; supported are",
    ),
    "short context": (configure(max_position_embeddings=32), "supports 32 positions"),
    "long rope without a switch": (
        configure(rope_parameters=None, rope_scaling={"type": "su"}),
        "names no original_max_position_embeddings",
    ),
    "another class": (configure(model_type="mistral"), "makes a MistralForCausalLM, .* name LlamaForCausalLM"),
    "wrong epsilon": (configure(rms_norm_eps="abc"), "transformers cannot create a model from .*'rms_norm_eps'"),
    "heads that do not divide": (configure(num_attention_heads=6), "cannot create a model from .*multiple of"),
    "small vocabulary": (configure(vocab_size=100), "tokenizer has 323 ids, but vocab_size .* is 100"),
    "wrong type": (configure(hidden_size="64"), "config.json.hidden_size is .64.: expected int, got str"),
    "damaged config": (damaged_config, "config.json cannot be read"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "is not a model folder: it has no config.json"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer file"),
    "damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer.json"),
    "damaged template": (lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"), "template"),
    "end id out of range": (configure(eos_token_id=5000), "end-of-sequence id 5000 is outside its 352 rows"),
    "only pickles": (only_pickles, "only as pickle files.*convert them to safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "shard missing": (index_without_shard, "lacks 1 of 1 shards, model-00001"),
    "shard outside": (index_of('{"weight_map": {"a": "../other.safetensors"}}'), "outside its folder: refused"),
    **{
        f"index {text[:20]}": (index_of(text), r"index\.json cannot be read .*: download it again")
        for text in ("", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "[" * 100_000)
    },
    "truncated": (truncate, "is not a valid safetensors file"),
    "nonsense header": (nonsense_header, "is not a valid safetensors file"),
    "tensor missing": (rewrite(missing_tensor), "lacks 1 tensor.*layers.1.mlp.up_proj.weight first"),
    "other shape": (configure(intermediate_size=128), r"makes .* \[128, 64\], the file has \[96, 64\]"),
    "not a number": (rewrite(not_a_number), "layers.1.mlp.up_proj holds NaN or infinity"),
}


@pytest.mark.parametrize("name", CASES)
def test_export_refuses(name: str, model: Path, tmp_path: Path, own_cache: Path) -> None:
    change_folder, message = CASES[name]
    change_folder(model)
    units = set((own_cache / "exports").glob("*"))  # left by tests that interrupt exports
    with pytest.raises(EdgeDecodeError, match=message) as caught:
        export(model, tmp_path / "new" / "pack")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert set((own_cache / "exports").glob("*")) <= units  # no new unit for a later run to resume


@pytest.mark.parametrize("change_folder", [only_pickles, lacks_a_shard, damaged_config, configure(head_dim=24)])
def test_dry_run_refuses_the_same_models(change_folder: Callable[[Path], None], model: Path) -> None:
    change_folder(model)
    with pytest.raises(ExportError):
        check_pair(PairRequest(str(model), None, Path(), recipe(8)), out=None)


@pytest.mark.usefixtures("tables_too")
def test_export_notes_a_missing_chat_template(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "chat_template.jinja").unlink()
    words = ["export", "--target", str(model), "--out", str(tmp_path / "pack"), "--noise-positions", "0", "--json"]
    assert main([*words, "--dry-run"]) == main(words) == 0
    printed = capsys.readouterr().out
    assert printed.count("\ntarget: the source has no chat template: a plain one is used\n") == 2
    report = json.loads(printed.splitlines()[-1])
    assert report["models"]["target"]["notes"] == ["the source has no chat template: a plain one is used"]
    manifest = Manifest.load(tmp_path / "pack")
    assert manifest.chat_template is None
    assert list(manifest.models["target"].notes) == report["models"]["target"]["notes"]


@pytest.mark.parametrize("block_size", [32, 128])
def test_export_refuses_a_block_size_that_does_not_divide(block_size: int, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModel(mlp=160))
    stored = Recipe(Scheme(8, block_size), Scheme(8, 32))
    if block_size == 32:
        export(folder, tmp_path / "pack", stored=stored)
    else:
        with pytest.raises(ExportError, match="use --block-size 32"):
            export(folder, tmp_path / "pack", stored=stored)


def test_export_refuses_weights_too_large_for_float16(model: Path, tmp_path: Path) -> None:
    rewrite(lambda tensors: tensors["model.layers.0.mlp.up_proj.weight"].fill(1e6))(model)
    with pytest.raises(ExportError, match=r"too large for float16: use --bits 32, 8 or 4"):
        export(model, tmp_path / "pack", stored=recipe(16))


def test_export_refuses_a_draft_of_another_family(model: Path, llama: Path, tmp_path: Path) -> None:
    byte_fallback().save(str(model / "tokenizer.json"))
    with pytest.raises(
        IncompatiblePair,
        match=r"different tokenizers .id 0 is .*: take one of the target's family, or pair their GGUF files",
    ):
        export(llama, tmp_path / "pack", draft=model)
    assert not (tmp_path / "pack").exists()


def test_export_refuses_a_draft_with_one_more_token(model: Path, llama: Path, tmp_path: Path) -> None:
    inner = byte_level()
    inner.add_tokens(["<one more>"])
    inner.save(str(model / "tokenizer.json"))
    with pytest.raises(IncompatiblePair, match=r"id 323 is .*one more"):
        export(llama, tmp_path / "pack", draft=model)


def test_export_refuses_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"there is no folder .*, and it is not a hub id"):
        export(tmp_path / "nowhere", tmp_path / "pack")


def test_export_refuses_a_hub_id_offline(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'nobody/nothing' is not a folder, and it could not be downloaded"):
        export(Path("nobody/nothing"), tmp_path / "pack")


def test_require_frameworks_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(RuntimeUnavailable, match=r"export needs torch, .*pip install 'edgedecode\[export\]'"):
        frameworks.require_frameworks()
