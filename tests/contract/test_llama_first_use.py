"""GGUF files built at first use: cached, rebuilt where damaged, never partially written. Needs no engine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import time

import numpy as np
import pytest

from edgedecode.errors import BudgetExceeded, CapabilityError, RuntimeUnavailable
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.memory.budget import Budget
from edgedecode.open_pack import load
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from edgedecode.runtimes.llama.files import cached_gguf as first_use
from edgedecode.runtimes.llama.files.cached_gguf import gguf_path
from edgedecode.runtimes.llama.files.engine_probe import Finding

pytest.importorskip("gguf", reason="the llama extra is not installed")


@pytest.fixture(scope="module")
def bundled() -> Path:
    """Return the bundled pack's folder."""
    if not (BUNDLED_PACK / MANIFEST_NAME).is_file() or not Manifest.load(BUNDLED_PACK).models["draft"].gguf_plan:
        pytest.skip("the bundled pack has no GGUF plan: run `make pack`")
    return BUNDLED_PACK


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


@pytest.fixture(scope="module")
def made(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a cache that contains the draft's built file, to be copied."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDECODE_CACHE", str(folder))
        path_of(bundled)
        yield folder / "gguf"


def path_of(root: Path, *, role: str = "draft", budget: Budget | None = None) -> Path:
    return gguf_path(Manifest.load(root).located(role), root, name=role, budget=budget or Budget())


@pytest.fixture
def no_building(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any build of a file fail in this test."""
    monkeypatch.setattr(first_use, "_run_child", None)


def test_gguf_path_builds_once_and_leaves_no_lease(bundled: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(10**9)
    path = path_of(bundled, budget=budget)
    assert path.read_bytes()[:4] == b"GGUF"
    assert budget.leases == ()
    assert sorted(each.suffix for each in cache.iterdir()) == [".gguf", ".json"]
    monkeypatch.setattr(first_use, "_run_child", None)
    assert path_of(bundled) == path


def test_gguf_path_of_the_target_builds_the_drafts_too(
    bundled: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's memory is needed before a model is loaded, not in addition to one."""
    path = path_of(bundled, role="target")
    monkeypatch.setattr(first_use, "_run_child", None)
    assert {path, path_of(bundled, role="draft")} == set(cache.glob("*.gguf"))


def test_gguf_path_rehashes_and_keeps_a_touched_file(
    bundled: Path, made: Path, cache: Path, no_building: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, cache)
    (path,) = cache.glob("*.gguf")
    path.touch()
    assert path_of(bundled) == path
    monkeypatch.setattr("edgedecode.runtimes.kept_files.file_sha256", None)
    assert path_of(bundled) == path, "it must not be hashed again"


@pytest.mark.parametrize("damage", ["truncated", "unexpected", "flipped", "gone", "no record", "damaged record"])
def test_gguf_path_rebuilds_a_damaged_file(damage: str, bundled: Path, made: Path, cache: Path) -> None:
    shutil.copytree(made, cache)
    (path,) = cache.glob("*.gguf")
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    match damage:
        case "truncated":
            path.write_bytes(whole[:-1000])
        case "unexpected":
            path.write_bytes(b"something else")
        case "flipped":
            path.write_bytes(flipped)
        case "gone":
            path.unlink()
        case "no record":
            path.with_suffix(".json").unlink()
        case _:
            path.with_suffix(".json").write_text("[]")
    assert path_of(bundled) == path
    assert path.read_bytes() == whole
    assert len(list(cache.iterdir())) == 2


def test_gguf_path_in_a_frozen_application_builds_without_starting_itself(
    bundled: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "run", None)
    (wanted,) = made.glob("*.gguf")
    assert path_of(bundled).read_bytes() == wanted.read_bytes()


def test_gguf_path_in_two_processes_at_once(bundled: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edgedecode.pack.manifest import Manifest; "
        "from edgedecode.memory.budget import Budget; "
        "from edgedecode.runtimes.llama.files.cached_gguf import gguf_path; "
        "root = Path(sys.argv[1]); "
        "print(gguf_path(Manifest.load(root).located('draft'), root, name='draft', budget=Budget()))"
    )
    command = [sys.executable, "-c", code, str(bundled)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {Path(process.communicate(timeout=120)[0].strip()) for process in both}
    assert [process.returncode for process in both] == [0, 0]
    (path,) = paths
    assert sorted(each.name for each in cache.iterdir()) == sorted([path.name, path.with_suffix(".json").name])
    record = json.loads(path.with_suffix(".json").read_text())
    assert first_use.file_sha256(path) == record["sha256"]


def test_gguf_path_with_a_cache_that_cannot_be_written(
    bundled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGEDECODE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CapabilityError, match=r"cannot be written.*EDGEDECODE_CACHE.*--runtime onnx"):
        path_of(bundled)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("tell_parent({'unwritten': 'No space left on device'})", r"in the cache \(No space left.*free some space"),
        ("tell_parent({'refused': 'the plan is damaged'})", "cannot be built: the plan is damaged"),
        ("import os; os.kill(os.getpid(), 9)", "cannot be built: its native code died with SIGKILL"),
    ],
)
def test_gguf_path_with_a_failing_child_leaves_no_file(
    code: str, message: str, bundled: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = "import sys; from edgedecode.engines.child import tell_parent; open(sys.argv[3], 'wb').write(b'GGUF'); "
    monkeypatch.setattr(first_use, "child_command", lambda function: [sys.executable, "-c", half + code])
    with pytest.raises(CapabilityError, match=message):
        path_of(bundled)
    assert list(cache.iterdir()) == []


def test_leftovers_of_a_killed_build_are_removed(bundled: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    old, young = cache / "one.gguf.00000abc.making", cache / "one.gguf.00000def.making"
    for path, seconds in ((old, 2 * 3600), (young, 60)):
        path.write_bytes(b"GGUF")
        os.utime(path, (time() - seconds,) * 2)
    monkeypatch.setattr(first_use, "_run_child", lambda root, role, out: out.touch())
    made = path_of(bundled)
    assert {path.name for path in cache.iterdir()} == {young.name, made.name, f"{made.stem}.json"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_build_reports_a_full_disk(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_use.write_made(str(bundled), "draft", "/dev/full")
    assert capsys.readouterr().out.endswith('{"unwritten": "No space left on device"}\n')


def test_gguf_path_refuses_a_budget_too_small_to_build(bundled: Path, cache: Path, no_building: None) -> None:
    with pytest.raises(
        BudgetExceeded,
        match=r"for building draft\.gguf, .*: run once without --memory, or with [\d.]+MB or more: the file",
    ):
        path_of(bundled, budget=Budget(10**6))
    assert list(cache.iterdir()) == []


def test_gguf_path_replaces_the_file_of_another_pack_version(bundled: Path, tmp_path: Path, cache: Path) -> None:
    root = tmp_path / "pack"
    shutil.copytree(bundled, root)
    old = path_of(root)
    other = path_of(bundled)
    assert other == old, "two copies of a pack share one file"
    tokenizer = root / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    manifest = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    manifest["files"]["tokenizer.json"]["sha256"] = first_use.file_sha256(tokenizer)
    (root / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    new = path_of(root)
    assert new != old
    assert [path.name for path in cache.glob("*.gguf")] == [new.name]


def test_gguf_path_refuses_weights_that_gguf_cannot_store_in_one_line(
    bundled: Path, tmp_path: Path, cache: Path
) -> None:
    """Random bytes with a matching digest: scales that are not float16 numbers."""
    root = tmp_path / "pack"
    shutil.copytree(bundled, root)
    manifest = json.loads((root / MANIFEST_NAME).read_text(encoding="utf-8"))
    name = manifest["models"]["draft"]["weights"]
    (root / name).write_bytes(np.random.default_rng(0).bytes((root / name).stat().st_size))
    manifest["files"][name]["sha256"] = first_use.file_sha256(root / name)
    (root / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CapabilityError, match=r"the weights are damaged .*scales that are not float16.*again$"):
        path_of(root)
    assert list(cache.iterdir()) == []


def test_gguf_path_without_file_and_plan_is_refused(bundled: Path) -> None:
    from dataclasses import replace

    entry = replace(Manifest.load(bundled).located("target"), gguf_plan="")
    with pytest.raises(CapabilityError, match=r"has no GGUF file of the model target and cannot build one.*--formats"):
        gguf_path(entry, bundled, name="target", budget=Budget())


def test_load_on_both_engines_gives_the_same_text(bundled: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    pytest.importorskip("onnxruntime")
    texts = []
    for runtime in ("onnx", "llama"):
        with load(bundled, runtime=runtime) as pair, pair.session() as session:
            assert pair.runtime == runtime
            texts.append(session.generate("What is the capital of France?", max_tokens=16).text)
    assert texts[0] == texts[1] == "The capital of France is Paris."


def test_gguf_path_builds_nothing_for_an_engine_that_does_not_run(
    bundled: Path, cache: Path, no_building: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedecode.runtimes.llama.llama_runtime.engine_version", lambda: "0.0")
    monkeypatch.setattr(
        "edgedecode.runtimes.llama.llama_runtime.probe_engine", lambda version: Finding(False, "its native code died")
    )
    with pytest.raises(RuntimeUnavailable, match="does not run here: its native code died"):
        load(bundled, runtime="llama")
    assert not cache.exists()
