"""Opening GGUF files: damaged, unexpected and missing files and bad options give a one-line error."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import edgedecode
from edgedecode import LoadOptions
from edgedecode.cli import main
from edgedecode.errors import CapabilityError, EdgeDecodeError, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import ModelEntry
from tests.contract.conftest import DAMAGE, GgufOpener, damage, open_entry, open_gguf, request_of
from tests.contract.gguf_pack import write_pack
from tests.contract.toy_graph import ToyShape


@pytest.fixture
def pack(gguf_opener: GgufOpener, tmp_path: Path) -> Path:
    gguf_opener.entry(ToyShape())
    return Path(shutil.copytree(gguf_opener.root(ToyShape()), tmp_path / "pack"))


@pytest.fixture
def entry(gguf_opener: GgufOpener) -> ModelEntry:
    return gguf_opener.entry(ToyShape())


def refused(entry: ModelEntry, root: Path) -> str:
    """Open the entry, expect a ManifestError of one line, and check that no lease remains."""
    budget = Budget()
    with pytest.raises(ManifestError) as caught:
        open_gguf(entry, root, budget=budget)
    assert "\n" not in str(caught.value)
    assert [lease.name for lease in budget.leases] == []
    return str(caught.value)


@pytest.mark.parametrize("how", DAMAGE)
def test_open_damaged_gguf_files(pack: Path, entry: ModelEntry, how: str) -> None:
    damage(pack / entry.gguf, how)
    assert str(pack / entry.gguf) in refused(entry, pack)


def test_open_errors_of_the_engine_are_one_line(pack: Path, entry: ModelEntry) -> None:
    path = pack / entry.gguf
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight"))
    assert "tensor 'blk.1.ffn_up.weight' not found" in refused(entry, pack)
    path.write_bytes(content.replace(b"qwen2", b"qwen0"))
    assert "the architecture 'qwen0', the manifest says qwen2" in refused(entry, pack)
    assert "unknown model architecture: 'qwen0'" in refused(replace(entry, architecture="qwen0"), pack)


def test_open_refuses_sizes_that_differ_from_the_manifest(pack: Path, entry: ModelEntry) -> None:
    assert "has rows 128, the manifest says 130" in refused(replace(entry, rows=130), pack)
    assert "has KV heads 2, the manifest says 4" in refused(replace(entry, kv_heads=4), pack)


@pytest.mark.parametrize(
    ("provider", "threads", "error", "words"),
    [("qnn", None, CapabilityError, "it has: cpu"), ("cpu", 0, InputError, "threads")],
)
def test_open_refuses_bad_options(
    pack: Path, entry: ModelEntry, provider: str, threads: int | None, error: type[EdgeDecodeError], words: str
) -> None:
    open_gguf(entry, pack, budget=Budget()).close()  # skips where the engine is missing
    from edgedecode.runtimes.llama import LlamaRuntime

    with pytest.raises(error, match=words):
        LlamaRuntime().open(request_of(entry, pack, threads=threads, provider=provider))


def test_open_refuses_an_entry_without_a_gguf_file(pack: Path, entry: ModelEntry) -> None:
    with pytest.raises(CapabilityError, match=r"no GGUF file of the model target.*--formats onnx,gguf"):
        open_gguf(replace(entry, gguf=""), pack, budget=Budget())


def test_load_of_a_pack_without_a_gguf_file_on_llama_is_refused(tmp_path: Path, gguf_opener: GgufOpener) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    gguf, onnx = tmp_path / "gguf", tmp_path / "onnx"
    write_pack(gguf, gguf_opener)
    write_pack(onnx, gguf_opener, gguf=False)
    with pytest.raises(CapabilityError, match=r"no GGUF file .*--formats onnx,gguf"):
        edgedecode.load(onnx, runtime="llama")
    texts = []
    for root, runtime in ((gguf, "llama"), (onnx, "onnx")):
        with edgedecode.load(root, runtime=runtime, memory="4GB") as pair, pair.session() as session:
            texts.append(session.generate("hello", max_tokens=20).tokens)
    assert texts[0] == texts[1]
    with pytest.raises(CapabilityError, match="loads weights in one way only: leave out --no-mmap, or use"):
        edgedecode.load(onnx, runtime="onnx", options=LoadOptions(mmap=False))
    with edgedecode.load(gguf, runtime="auto", options=LoadOptions(mmap=False)) as pair:
        assert pair.runtime == "llama"


def test_generate_command_runs_a_gguf_pack(
    tmp_path: Path, gguf_opener: GgufOpener, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    root = write_pack(tmp_path / "pack", gguf_opener)
    words = ["generate", "-m", str(root), "--runtime", "llama", "-p", "hello", "--max-tokens", "5", "-c", "256"]
    assert main(words) == 0
    assert main([*words, "--memory", "1MB"]) == 1
    assert main([*words, "--no-mmap", "--no-repack"]) == 0
    capsys.readouterr()


def test_engine_log_is_quiet_by_default(pack: Path, entry: ModelEntry, capfd: pytest.CaptureFixture[str]) -> None:
    model = open_gguf(entry, pack, budget=Budget())
    model.forward([1, 2], model.new_state(8))
    model.close()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_engine_log_is_forwarded_at_debug(pack: Path, entry: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="edgedecode.llama"):
        open_gguf(entry, pack, budget=Budget()).close()
    assert "llama_model_loader" in caplog.text


def test_open_without_mmap(pack: Path, entry: ModelEntry) -> None:
    open_gguf(entry, pack, budget=Budget()).close()  # skips where the engine is missing
    from edgedecode.runtimes.llama import LlamaRuntime

    budget = Budget()
    model = LlamaRuntime(mmap=False).open(request_of(entry, pack, budget=budget))
    weights = next(lease.nbytes for lease in budget.leases if lease.name == "weights:target")
    assert weights >= (pack / entry.gguf).stat().st_size * 0.9
    assert model.forward([1], model.new_state(8)).logits.shape == (1, 128)
    model.close()


def test_card_of_a_gguf_model(pack: Path, entry: ModelEntry) -> None:
    card = open_gguf(replace(entry, kernel_noise=0.25, graphs={}), pack, budget=Budget()).card
    assert (card.name, card.rows, card.vocabulary_size, card.context, card.threads) == ("target", 128, 128, 512, 1)
    assert card.tree
    assert card.rollback
    assert card.kernel_noise == 0.25


def test_process_ends_cleanly_with_models_and_states_open(pack: Path, entry: ModelEntry) -> None:
    """Contexts are freed before their weights, also at interpreter exit."""
    open_gguf(entry, pack, budget=Budget()).close()  # skips where the engine is missing
    code = (
        "import sys; from pathlib import Path; from dataclasses import replace; "
        "from tests.contract.conftest import open_gguf; from edgedecode.memory.budget import Budget; "
        "from tests.contract.toy_gguf import write_toy_gguf; "
        "entry = write_toy_gguf(Path(sys.argv[1])); model = open_gguf(entry, Path(sys.argv[1]), budget=Budget()); "
        "state = model.new_state(8); view = model.forward([1], state).logits"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(pack)],
        capture_output=True,
        timeout=120,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_open_entry_of_the_same_toy_on_onnx(pack: Path, entry: ModelEntry) -> None:
    model = open_entry(entry, pack, budget=Budget())
    assert model.card.rows == 128
