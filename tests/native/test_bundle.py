"""`selftest` of an Android bundle: the native library writes the recorded answers, with and without drafts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.export.bundles import selftest
from edgedecode.export.bundles.bundle import Bundle, write_bundle
from edgedecode.export.bundles.package import _listed
from tests.conftest import Told
from tests.export.conftest import run
from tests.native.test_models import ENGINE

pytestmark = pytest.mark.skipif(ENGINE is None, reason="this onnxruntime has no library of its own")


@pytest.fixture(scope="module")
def program(native_build: Path) -> Path:
    return native_build / "edgedecode-run"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "bundle"
    assert run("package", "demo", "--target", "android-cpu", "--out", out) == 0
    return out


def test_a_bundle_passes_on_this_processor(bundle: Path, program: Path, told: Told) -> None:
    (lane,) = told("selftest", bundle, "--program", program)
    assert (lane["lane"], lane["passed"], lane["ran"]) == ("native", True, True)
    assert len(lane["answers"]) == 8
    assert sum(one["tokens"] for one in lane["answers"]) > 100


def test_other_expected_answers_fail(bundle: Path, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundle / "selftest/replay.jsonl"
    before = path.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in before.splitlines()]
    lines[2]["expected"][1] += 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    write_bundle(bundle, replace(Bundle.load(bundle), files=_listed(bundle)))
    try:
        assert run("selftest", bundle, "--program", program) == 1
        assert "native: FAILED, edgedecode-run with libonnxruntime.so" in (said := capsys.readouterr().out)
        assert "7 of 8 answers as expected" in said
    finally:
        path.write_text(before, encoding="utf-8")
        write_bundle(bundle, replace(Bundle.load(bundle), files=_listed(bundle)))


def test_a_program_that_dies_is_reported(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("selftest", bundle, "--program", "/bin/false") == 1
    assert "native: FAILED, edgedecode-run ended with exit code 1\n" in capsys.readouterr().out


def test_without_a_compiler_the_lane_says_what_it_needs(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest.shutil, "which", lambda name: None)
    assert run("selftest", bundle) == 1
    assert "native: not run: edgedecode-run cannot be built here" in capsys.readouterr().out


def test_the_app_opens_it_as_planned(bundle: Path) -> None:
    plan = Bundle.load(bundle).plan
    activity = (bundle / "gradle/app/src/main/kotlin/edgedecode/app/MainActivity.kt").read_text(encoding="utf-8")
    assert f'arrayOf<Pair<String, Any?>>("memory" to {plan.budget_nbytes}, "threads" to 4, "experience"' in activity
