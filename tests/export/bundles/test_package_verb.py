"""`package`: what bundles hold, plans for devices, and bad input in one line with nothing half-written."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.export.bundles.bundle import Bundle
from edgedecode.export.bundles.device.decode import Round
from edgedecode.export.bundles.device.run import Opener, Selftest
from edgedecode.export.bundles.request import GB, usual_share
from edgedecode.export.bundles.speeds import Speeds, best_length
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from tests.conftest import Refusal, Told
from tests.export.bundles.conftest import package_graphs
from tests.export.conftest import run


@pytest.fixture(scope="module")
def llamacpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    out = tmp_path_factory.mktemp("llamacpp") / "bundle"
    assert run("package", "demo", "--target", "android-llamacpp", "--out", out) == 0
    return out


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_every_file_of_a_bundle_is_listed_with_its_digest(cpu: Path) -> None:
    bundle = Bundle.load(cpu)
    assert {*bundle.files} == files(cpu) - {"bundle.json", "SHA256SUMS"}
    assert bundle.named() <= {*bundle.files}
    sums = dict(line.split("  ")[::-1] for line in (cpu / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert {*sums} == files(cpu) - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((cpu / name).read_bytes()).hexdigest() == digest, name


def test_the_models_are_the_packs(graphs: Path) -> None:
    for role in ("target", "draft"):
        for name in ("base.onnx", "weights.bin"):
            assert (graphs / "models" / role / name).read_bytes() == (BUNDLED_PACK / role / name).read_bytes()


def test_the_same_input_gives_the_same_bytes(cpu: Path, tmp_path: Path, told: Told) -> None:
    listed = told("package", "demo", "--target", "android-cpu", "--out", tmp_path / "again")["files"]
    assert {name: each["sha256"] for name, each in listed.items()} == {
        name: each.sha256 for name, each in Bundle.load(cpu).files.items()
    }
    assert {name: (tmp_path / "again" / name).read_bytes() for name in files(cpu)} == {
        name: (cpu / name).read_bytes() for name in files(cpu)
    }


def test_the_description_is_read_back_as_written(cpu: Path) -> None:
    text = (cpu / "bundle.json").read_text(encoding="utf-8")
    assert Bundle.from_json(json.loads(text)).to_json() == text


def test_recorded_answers_are_those_of_edgedecode(graphs: Path) -> None:
    import edgedecode
    from edgedecode import SamplingOptions, SessionOptions

    prompts = json.loads((graphs / "selftest/prompts.json").read_text(encoding="utf-8"))["prompts"]
    answers = json.loads((graphs / "selftest/expected.json").read_text(encoding="utf-8"))["answers"]
    bundle = json.loads((graphs / "bundle.json").read_text(encoding="utf-8"))
    opener = Opener(graphs, bundle, provider="cpu", soc=None, threads=1)
    target = opener.open("target")
    assert target is not None
    test = Selftest(graphs, bundle, target, opener.open("draft"), provider="cpu")
    greedy = SessionOptions(sampling=SamplingOptions(temperature=0.0))
    with edgedecode.load(BUNDLED_PACK, runtime="onnx") as pair:
        for prompt, answer in zip(prompts, answers, strict=True):
            text = prompt["text"].split("user\n")[1].split("<|im_end|>")[0]
            with pair.session(greedy) as session:
                own = list(session.generate(text, max_tokens=prompt["most"]).tokens)
            noise = pair.manifest.models["target"].kernel_noise
            assert noise is not None
            assert own == answer or float(test._gaps(prompt["tokens"], own).max()) <= 2 * noise


def test_a_llama_bundle_holds_the_models_and_the_servers_arguments(llamacpp: Path) -> None:
    bundle = Bundle.load(llamacpp)
    words = bundle.commands["llama-server"]
    assert {bundle.models["target"].gguf, bundle.models["draft"].gguf} <= {*words}
    assert words[words.index("--spec-draft-n-max") + 1] == str(bundle.plan.draft_length)
    assert words[words.index("--ctx-size") + 1] == str(bundle.plan.context)
    script = (llamacpp / "run.sh").read_text(encoding="utf-8")
    assert " ".join(words) in script
    assert subprocess.run(["sh", "-n", llamacpp / "run.sh"], check=False).returncode == 0


@pytest.mark.parametrize(("memory", "soc"), [(4, []), (12, ["--soc", "SM8750"])])
def test_the_plan_stays_within_the_phones_share(memory: int, soc: list[str], tmp_path: Path, quick: list[str]) -> None:
    out = tmp_path / "bundle"
    words = ["--device-memory", f"{memory}GB", *soc]
    assert run("package", "demo", "--target", "android-cpu", *quick, "--out", out, *words) == 0
    plan = Bundle.load(out).plan
    assert (
        plan.nbytes == sum(plan.holders.values()) <= plan.budget_nbytes == int(memory * GB * usual_share(memory * GB))
    )
    assert (plan.device, plan.profile) == ("".join(soc[1:]), "assumed")


def test_a_measured_profile_sets_speed_and_draft_length(tmp_path: Path, quick: list[str], refusal: Refusal) -> None:
    profile = tmp_path / "profile.json"
    passes = {str(rows): 0.01 * (1 + 0.9 * (rows - 1)) for rows in range(1, 13)}
    value = {
        "conditions": {"device": "a slow phone", "pack": "demo, digest 1, onnx on cpu"},
        "costs": {"target_seconds": passes, "drafts": {"model": {"first_seconds": 0.02, "next_seconds": 0.02}}},
    }
    profile.write_text(f"some table\n{json.dumps(value)}\n", encoding="utf-8")
    out = tmp_path / "bundle"
    assert run("package", "demo", "--target", "android-cpu", *quick, "--out", out, "--profile", profile) == 0
    plan = Bundle.load(out).plan
    assert (plan.profile, plan.draft_length, plan.drafted_per_second) == ("a slow phone", 0, None)
    assert plan.tokens_per_second == pytest.approx(100)
    value["costs"]["target_seconds"] = {"1": 1e-320}
    profile.write_text(json.dumps(value), encoding="utf-8")
    assert "has a pass of 9.99989e-321 s, which cannot be right" in refusal(
        "package", "demo", "--target", "android-cpu", *quick, "--out", tmp_path / "b", "--profile", profile
    )


def test_the_fastest_draft_length_is_chosen_from_recorded_rounds() -> None:
    cheap = Speeds("a", dict.fromkeys(range(1, 10), 1.0), 0.05)
    dear = Speeds("a", {rows: float(rows) for rows in range(1, 10)}, 0.05)
    first = Round(3, (), (5,))
    rounds = {2: [[first, Round(4, (1, 2), (1, 2, 3))]], 4: [[first, Round(4, (1, 2, 3, 4), (1, 2, 3, 9))]]}
    plain, best = best_length(cheap, rounds)
    assert (plain.per_second, best.length) == (1.0, 4)
    assert best.per_second == pytest.approx(4 / (1 + 0.05 * 5))
    assert best_length(dear, rounds)[1].length == 0


def test_passes_of_fixed_widths_cost_their_width() -> None:
    speeds = Speeds("a", {rows: float(rows) for rows in range(1, 10)}, 0.05).padded([1, 8])
    assert [speeds.pass_seconds(rows) for rows in (1, 2, 5, 8)] == [1.0, 8.0, 8.0, 8.0]


def small_pack(folder: Path, change: Callable[[Manifest], Manifest]) -> Path:
    """Copy the bundled pack with another manifest."""
    shutil.copytree(BUNDLED_PACK, folder)
    manifest = change(Manifest.load(folder))
    for name in {*manifest.files} - manifest.named():
        (folder / name).unlink()
        if not any((folder / name).parent.iterdir()):
            (folder / name).parent.rmdir()
    manifest = replace(manifest, files={name: manifest.files[name] for name in sorted(manifest.named())})
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return folder


def without_gguf(manifest: Manifest) -> Manifest:
    models = {role: replace(entry, gguf_plan="", gguf="") for role, entry in manifest.models.items()}
    return replace(manifest, models=models)


def without_base(manifest: Manifest) -> Manifest:
    target = manifest.models["target"]
    graphs = {name: graph for name, graph in target.graphs.items() if name != "base"}
    return replace(manifest, models={**manifest.models, "target": replace(target, graphs=graphs)})


def alone(manifest: Manifest) -> Manifest:
    return replace(manifest, models={"target": manifest.models["target"]}, switching=None)


def test_a_pack_without_a_draft_model_is_packaged_for_plain_decoding(tmp_path: Path, quick: list[str]) -> None:
    pack, out = small_pack(tmp_path / "pack", alone), tmp_path / "bundle"
    assert run("package", pack, "--target", "android-cpu", *quick, "--out", out) == 0
    bundle = Bundle.load(out)
    assert ({*bundle.models}, bundle.plan.draft_length) == ({"target"}, 0)
    native = json.loads((out / "native/native.json").read_text(encoding="utf-8"))
    assert {*native["models"]} == {"target"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["demo", "--target", "android-qnn"], "is not compiled: run `edgedecode compile"),
        (["demo", "--target", "android-qnn", "--soc", "SM8650"], "--device qnn --soc 57` first"),
        (["demo", "--target", "android-cpu", "--soc", "SM1"], "'SM1' is not a known chip, which are 30: SM8350"),
        (["demo", "--target", "android-cpu", "--device-memory", "10MB"], "out of range"),
        (["demo", "--target", "android-cpu", "--device-memory", "much"], "much"),
        (["demo", "--target", "android-cpu", "--app-id", "pond"], "Android takes names of two or more parts"),
        (["demo", "--target", "android-cpu", "--app-id", "com.new.app"], "'new' is a keyword"),
        (["demo", "--target", "android-cpu", "--ctx-size", "9000"], "9000"),
        (["demo", "--target", "android-llamacpp", "--ctx-size", "9000"], "have a context of 2048: give at most that"),
        (["demo", "--target", "android-cpu", "--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
        (["demo", "--target", "android-cpu", "--profile", "nowhere.json"], "edgedecode bench --json"),
        (["nowhere", "--target", "android-cpu"], "nowhere"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_writes_nothing(
    words: list[str], said: str, tmp_path: Path, refusal: Refusal
) -> None:
    out = tmp_path / "out" / "bundle"
    assert said in refusal("package", *words, "--out", out)
    assert not out.parent.exists()


def without_noise(manifest: Manifest) -> Manifest:
    models = {role: replace(entry, kernel_noise=None) for role, entry in manifest.models.items()}
    return replace(manifest, models=models)


def test_rounding_is_measured_if_the_pack_does_not_say(graphs: Path, tmp_path: Path, quick: list[str]) -> None:
    pack = small_pack(tmp_path / "pack", without_noise)
    package_graphs(tmp_path / "bundle", pack=pack, prompts=Path(quick[1]), tokens=2)
    measured, stored = (Bundle.load(each).plan.tolerance for each in (tmp_path / "bundle", graphs))
    assert 0.1 < measured["cpu"] < stored["cpu"] < 0.3  # of 50 positions the largest is rarely that of 2,000
    assert measured["llama"] == pytest.approx(2 * measured["cpu"], abs=1e-3)


def test_rounding_of_a_pack_without_graphs_is_measured_on_llama(tmp_path: Path, quick: list[str]) -> None:
    pytest.importorskip("llama_cpp", reason="the llama extra is not installed")
    pack = small_pack(tmp_path / "pack", lambda manifest: without_base(without_noise(manifest)))
    assert run("package", pack, "--target", "android-llamacpp", *quick, "--out", tmp_path / "bundle") == 0
    assert 0.2 <= Bundle.load(tmp_path / "bundle").plan.tolerance["llama"] < 1


@pytest.mark.parametrize(
    ("change", "target", "said"),
    [
        (without_gguf, "android-llamacpp", "has no GGUF form, which android-llamacpp needs: export it with --formats"),
        (without_base, "android-qnn", "has no ONNX graph that updates its cache in place"),
    ],
)
def test_a_pack_without_the_targets_format_is_refused(
    change: Callable[[Manifest], Manifest], target: str, said: str, tmp_path: Path, refusal: Refusal
) -> None:
    pack = small_pack(tmp_path / "pack", change)
    assert said in refusal("package", pack, "--target", target, "--out", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_folder_in_use_and_a_full_disk_are_refused(
    cpu: Path, tmp_path: Path, refusal: Refusal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "exists and is not empty" in refusal("package", "demo", "--target", "android-cpu", "--out", cpu)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert "make room" in refusal("package", "demo", "--target", "android-cpu", "--out", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_place_inside_the_pack_is_refused(refusal: Refusal) -> None:
    assert "is inside the pack" in refusal(
        "package", "demo", "--target", "android-cpu", "--out", BUNDLED_PACK / "bundle"
    )
    assert not (BUNDLED_PACK / "bundle").exists()


def test_names_cannot_run_commands_on_the_device(tmp_path: Path, quick: list[str]) -> None:
    pack = small_pack(tmp_path / "pack", lambda manifest: replace(manifest, name="a'; touch /tmp/owned; $(id) `id`"))
    out = tmp_path / "bundle"
    assert run("package", pack, "--target", "android-cpu", *quick, "--out", out) == 0
    line = next(each for each in (out / "install.sh").read_text("utf-8").splitlines() if "DESTINATION=" in each)
    assert line == "DESTINATION=/data/local/tmp/com.example.edgedecode/a---touch--tmp-owned----id---id-"


def test_a_phone_that_is_too_small_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgedecode.export.bundles import device_plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_plan, "_APP_NBYTES", 5 * 10**9)
        assert run("package", "demo", "--target", "android-cpu", "--out", tmp_path / "bundle") == 1
    error = capsys.readouterr().err
    assert "does not fit a device of" in error
    assert "give a larger --device-memory" in error
