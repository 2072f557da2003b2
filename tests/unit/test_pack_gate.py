"""The gate: whatever a stranger put into a pack is one line, before native code sees it, and nearly no memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import edgedecode
from edgedecode.cli import main
from edgedecode.errors import BudgetExceeded, ManifestError
from edgedecode.memory.process_memory import peak_nbytes, resident_nbytes
from edgedecode.onnx_format.graph_check import CheckedGraph, Weights, check_graph
from edgedecode.pack import gate as pack_gate
from edgedecode.pack.gate import check_pack
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.integrity import file_sha256
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.text.tokenizer import Tokenizer
from tests.hostile_packs import BASE, BYTES, FOLDERS, GRAPHS, NUMBERS, base_pack, copy_of, padded, signed, spoilt

pytestmark = [
    pytest.mark.skipif(not (BUNDLED_PACK / MANIFEST_NAME).is_file(), reason="there is no pack: run `make pack`"),
    pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX"),
]
CASES = {
    f"{group}: {name}": case
    for group, cases in {"numbers": NUMBERS, "graph": GRAPHS, "bytes": BYTES, "folder": FOLDERS}.items()
    for name, case in cases.items()
}
LIMIT_NBYTES = 130_000_000
"""The interpreter with tokenizers takes half of it; the pack's own plan on ONNX Runtime is larger."""


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_pack(tmp_path_factory.mktemp("sound") / "pack")


@dataclass(frozen=True)
class Answers:
    """What one process said of every spoilt pack: exit code and standard error of each, then what it had taken."""

    said: dict[str, tuple[int, str, str]]
    modules: list[str]
    peak_nbytes: int


_CODE = """if True:
    import contextlib, io, json, sys
    from edgedecode.cli import main
    from edgedecode.memory.process_memory import peak_nbytes
    said = {}
    for name, root in json.load(sys.stdin).items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["generate", "-m", root, "-p", "a", "-n", "1", "--memory", "130MB", "--runtime", "onnx"])
        said[name] = code, out.getvalue(), err.getvalue()
    native = [name for name in ("onnxruntime", "llama_cpp") if name in sys.modules]
    print(json.dumps([said, native, peak_nbytes()]))
"""


@pytest.fixture(scope="module")
def answers(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    folder = tmp_path_factory.mktemp("spoilt")
    roots = {name: str(spoilt(sound, folder / str(i), spoil)) for i, (name, (spoil, _)) in enumerate(CASES.items())}
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        input=json.dumps(roots),
        capture_output=True,
        text=True,
        env={**os.environ, "EDGEDECODE_CACHE": str(folder / "cache")},
        timeout=300,
        check=True,
    )
    return Answers(*json.loads(done.stdout))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))


def test_the_bundled_pack_and_its_copy_pass(sound: Path, tmp_path: Path) -> None:
    assert check_pack(BUNDLED_PACK) == Manifest.load(BUNDLED_PACK)
    assert check_pack(copy_of(sound, tmp_path / "copy")).name == "demo"  # its files have several names now


@pytest.mark.parametrize("name", CASES)
def test_corrupt_pack_gives_a_one_line_error(name: str, answers: Answers) -> None:
    code, out, err = answers.said[name]
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"edgedecode: [^\n]*{CASES[name][1]}[^\n]*\n", err), err
    assert len(err) < 600


def test_corrupt_packs_reach_no_native_code_and_take_no_memory(answers: Answers) -> None:
    assert answers.modules == []
    assert answers.peak_nbytes < LIMIT_NBYTES


def test_reading_the_tokenizer_is_leased_before_it_is_read(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = spoilt(sound, tmp_path / "pack", padded("tokenizer.json", 9_000_000))
    monkeypatch.setattr(Tokenizer, "from_file", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(BudgetExceeded, match=r"171\.\d MB are needed for reading the tokenizer"):
        edgedecode.load(root, memory=(resident_nbytes() or peak_nbytes() or 0) + 100_000_000, runtime="onnx")


def test_only_a_pack_that_changed_is_read_again(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of(sound, tmp_path / "pack")
    read: list[str] = []

    def noted(path: Path, weights: Weights, *, joins: bool) -> CheckedGraph:
        read.append(path.name)
        return check_graph(path, weights, joins=joins)

    monkeypatch.setattr(pack_gate, "check_graph", noted)
    check_pack(root)
    assert sorted(read) == ["base.onnx", "hidden.onnx", "lora.onnx"]
    check_pack(root)
    assert len(read) == 3
    value = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    value["models"]["target"]["context"] = 2049  # the files are the same, what is said of them is not
    (root / MANIFEST_NAME).unlink()
    (root / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ManifestError, match="serves 2048 positions"):
            check_pack(root)


def test_a_shorter_context_than_the_graph_serves_passes(sound: Path, tmp_path: Path) -> None:
    NUMBERS["more positions than tables"][0](root := copy_of(sound, tmp_path / "pack"))
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
def test_what_repositories_and_desktops_leave_passes(sound: Path, tmp_path: Path, name: str) -> None:
    root = copy_of(sound, tmp_path / "pack")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("x")
    if name.startswith("licenses/"):
        signed(root, [name])
    check_pack(root)


@pytest.mark.parametrize("name", ["draft/.trim-1-0.onnx", "draft/.trim-1-0.gguf.7.making", f"{MANIFEST_NAME}.7.making"])
def test_a_change_under_way_does_not_close_the_pack(sound: Path, tmp_path: Path, name: str) -> None:
    root = copy_of(sound, tmp_path / "pack")
    (root / name).write_bytes(b"half")
    check_pack(root)


def test_show_refuses_what_generate_refuses(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = spoilt(sound, tmp_path / "pack", FOLDERS["a hidden file"][0])
    assert main(["show", str(root), "--verify"]) == 1
    assert "is not listed" in capsys.readouterr().err


def test_digests_are_still_compared(sound: Path, tmp_path: Path) -> None:
    root = copy_of(sound, tmp_path / "pack")
    content = (root / BASE).read_bytes()
    (root / BASE).unlink()
    (root / BASE).write_bytes(content[:-1] + b"\0")
    assert file_sha256(root / BASE) != file_sha256(sound / BASE)
    with pytest.raises(ManifestError, match="is damaged"):
        check_pack(root)
