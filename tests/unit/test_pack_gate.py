"""The pack gate: a hostile pack is refused in one line, before native code reads it and with little memory."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import edgedecode
from edgedecode.errors import BudgetExceeded, ManifestError
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.process_memory import peak_nbytes, resident_nbytes
from edgedecode.onnx_format.graph_check import CheckedGraph, Weights, check_graph
from edgedecode.pack import model_checks
from edgedecode.pack.gate import check_pack
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.conftest import Refusal
from tests.hostile_packs import (
    BASE,
    BYTES,
    FOLDERS,
    GRAPHS,
    NUMBERS,
    base_pack,
    copy_of,
    corrupted_copy,
    list_files,
    padded,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")
CASES = {
    f"{group}: {name}": case
    for group, cases in {"numbers": NUMBERS, "graph": GRAPHS, "bytes": BYTES, "folder": FOLDERS}.items()
    for name, case in cases.items()
}
LIMIT_NBYTES = 130_000_000
"""The interpreter and tokenizers take half of it; running the pack on ONNX Runtime takes more."""


@pytest.fixture(scope="session")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_pack(tmp_path_factory.mktemp("valid") / "pack")


@dataclass(frozen=True)
class Results:
    """The results of one process for every hostile pack: exit code, standard output and error of each."""

    outcomes: dict[str, tuple[int, str, str]]
    modules: list[str]
    peak_nbytes: int


_CODE = """if True:
    import contextlib, io, json, sys
    from edgedecode.cli import main
    from edgedecode.memory.process_memory import peak_nbytes
    outcomes = {}
    for name, root in json.load(sys.stdin).items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["generate", "-m", root, "-p", "a", "-n", "1", "--memory", "130MB", "--runtime", "onnx"])
        outcomes[name] = code, out.getvalue(), err.getvalue()
    native = [name for name in ("onnxruntime", "llama_cpp") if name in sys.modules]
    print(json.dumps([outcomes, native, peak_nbytes()]))
"""


@pytest.fixture(scope="module")
def results(valid: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("corrupted")
    roots = {
        name: str(corrupted_copy(valid, folder / str(i), corrupt))
        for i, (name, (corrupt, _)) in enumerate(CASES.items())
    }
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=json.dumps(roots),
        capture_output=True,
        text=True,
        env={**os.environ, "EDGEDECODE_CACHE": str(folder / "cache")},
        timeout=300,
        check=True,
    )
    return Results(*json.loads(done.stdout))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))


def test_check_pack_accepts_the_bundled_pack_and_a_copy(valid: Path, tmp_path: Path) -> None:
    assert check_pack(BUNDLED_PACK) == Manifest.load(BUNDLED_PACK)
    assert check_pack(copy_of(valid, tmp_path / "copy")).name == "demo"  # the copy's files are hard links


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_check_pack_reports_a_corrupt_pack_in_one_line(name: str, results: Results) -> None:
    code, out, err = results.outcomes[name]
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"edgedecode: [^\n]*{CASES[name][1]}[^\n]*\n", err), err
    assert len(err) < 600


@pytest.mark.slow
def test_check_pack_refuses_corrupt_packs_without_native_code_and_with_little_memory(results: Results) -> None:
    assert results.modules == []
    assert results.peak_nbytes < LIMIT_NBYTES


def test_load_leases_memory_for_the_tokenizer_before_reading_it(
    valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = corrupted_copy(valid, tmp_path / "pack", padded("tokenizer.json", 9_000_000))
    monkeypatch.setattr(Tokenizer, "from_file", lambda *_, **__: pytest.fail("the tokenizer was read"))
    with pytest.raises(BudgetExceeded, match=r"171\.\d MB are needed for reading the tokenizer"):
        edgedecode.load(root, memory=(resident_nbytes() or peak_nbytes() or 0) + 100_000_000, runtime="onnx")


def test_check_pack_reads_only_a_changed_pack_again(
    valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of(valid, tmp_path / "pack")
    read: list[str] = []

    def recording(path: Path, weights: Weights) -> CheckedGraph:
        read.append(path.name)
        return check_graph(path, weights)

    monkeypatch.setattr(model_checks, "check_graph", recording)
    check_pack(root)
    assert sorted(read) == ["base.onnx", "lora.onnx"]
    check_pack(root)
    assert len(read) == 2
    value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    value["models"]["target"]["context"] = 2049  # same files, another manifest
    (root / MANIFEST_NAME).unlink()
    (root / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ManifestError, match="serves 2048 positions"):
            check_pack(root)


def test_check_pack_accepts_a_shorter_context_than_the_graphs(valid: Path, tmp_path: Path) -> None:
    NUMBERS["more positions than tables"][0](root := copy_of(valid, tmp_path / "pack"))
    value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    value["models"]["target"]["context"] = 512
    (root / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    assert check_pack(root).models["target"].context == 512


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "LICENSE", "LICENSE.txt", "LICENSE-MODEL", "NOTICE", "README_zh.md", ".gitattributes"),
        *(".git/config", ".cache/huggingface/x", "draft/.DS_Store", "licenses/a.txt"),
        *("Thumbs.db", "draft/desktop.ini", "draft/._base.onnx", "._edgedecode.json", "draft/.nfs0000000123"),
    ],
)
def test_check_pack_accepts_files_of_repositories_and_desktops(valid: Path, tmp_path: Path, name: str) -> None:
    root = copy_of(valid, tmp_path / "pack")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")
    if name.startswith("licenses/"):
        list_files(root, [name])
    check_pack(root)


@pytest.mark.parametrize("name", ["draft/.trim-1-0.onnx", "draft/.trim-1-0.gguf.7.making", f"{MANIFEST_NAME}.7.making"])
def test_check_pack_accepts_temporary_files_of_a_change_in_progress(valid: Path, tmp_path: Path, name: str) -> None:
    root = copy_of(valid, tmp_path / "pack")
    (root / name).write_bytes(b"half")
    check_pack(root)


def test_show_refuses_the_packs_that_generate_refuses(valid: Path, tmp_path: Path, refusal: Refusal) -> None:
    root = corrupted_copy(valid, tmp_path / "pack", FOLDERS["a hidden file"][0])
    assert "is not listed" in refusal("show", str(root), "--verify")


def test_check_pack_compares_digests(valid: Path, tmp_path: Path) -> None:
    root = copy_of(valid, tmp_path / "pack")
    content = (root / BASE).read_bytes()
    (root / BASE).unlink()
    (root / BASE).write_bytes(content[:-1] + b"\0")
    assert file_sha256(root / BASE) != file_sha256(valid / BASE)
    with pytest.raises(ManifestError, match="is damaged"):
        check_pack(root)
