"""`adapter`: add and remove a pack's adapters; a failed change prints one line and leaves the pack as it was."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import edgedecode
from edgedecode import LoadOptions
from edgedecode.adapters.peft_folder import CONFIG, WEIGHTS
from edgedecode.cli import main
from edgedecode.pack.hub import BUNDLED_PACK
from edgedecode.pack.manifest import MANIFEST_NAME
from tests.hub import Hub, check_download
from tests.peft_folders import write_peft


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    made = tmp_path / "pack"
    shutil.copytree(BUNDLED_PACK, made)
    return made


def contents(pack: Path) -> dict[str, bytes]:
    return {str(path.relative_to(pack)): path.read_bytes() for path in sorted(pack.rglob("*")) if path.is_file()}


def test_adapter_add_list_remove(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(pack)
    odd = write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201))
    assert main(["adapter", "add", str(pack), f"odd={odd}"]) == 0
    assert "active from its invocation tokens on" in capsys.readouterr().out
    assert main(["adapter", "list", str(pack)]) == 0
    assert "onnx, llama" in capsys.readouterr().out
    assert main(["adapter", "list", str(pack), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["odd"]["rank"] == 4
    with edgedecode.load(pack, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        assert pair.adapter("odd").name == "odd"
    assert main(["adapter", "remove", str(pack), "odd"]) == 0
    assert main(["adapter", "list", str(pack)]) == 0
    assert "has no adapters" in capsys.readouterr().out
    after = contents(pack)
    assert json.loads(after.pop(MANIFEST_NAME)) == {**json.loads(before.pop(MANIFEST_NAME)), "adapters": {}}
    assert after == before


def test_a_pack_with_an_adapter_comes_from_the_hub(pack: Path, hub: Hub, tmp_path: Path) -> None:
    assert main(["adapter", "add", str(pack), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    check_download(hub, pack)


def rewrite(**changed: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8")) | changed
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return change


def damage(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage, "is not a usable safetensors file"),
        (lambda folder: (folder / CONFIG).unlink(), "cannot be read"),
        (rewrite(use_dora=True), "uses use_dora"),
        (rewrite(peft_type="IA3"), "is of type IA3"),
        (rewrite(r=64), "but adapter_config.json gives rank 64"),
        (rewrite(init_lora_weights="pissa"), "changes the base model's weights"),
        (rewrite(lora_alpha=1e300), "that are not finite numbers"),
        (rewrite(alora_invocation_tokens=[999_999]), "the adapter is for another model"),
        (shutil.rmtree, "cannot be read"),
    ],
    ids=[
        "damaged",
        "no config",
        "DoRA",
        "another kind",
        "another rank",
        "PiSSA",
        "huge alpha",
        "another tokenizer",
        "no folder",
    ],
)
@pytest.mark.filterwarnings("error")
def test_adapter_add_that_fails_leaves_the_pack_unchanged(
    change: Callable[[Path], None],
    message: str,
    pack: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    odd, before = write_peft(tmp_path / "odd", seed=1), contents(pack)
    change(odd)
    assert main(["adapter", "add", str(pack), f"odd={odd}"]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert contents(pack) == before


def test_adapter_add_refuses_a_rank_above_the_packs(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = write_peft(tmp_path / "large", seed=1, rank=17)
    assert main(["adapter", "add", str(pack), f"large={large}"]) == 1
    assert "export the pack again with --lora-rank 17" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["off", "a/b", "..", ".x", "ü", "x" * 65, "target:a", "draft:off", "draft:a:b", "draft:"]
)
def test_adapter_add_refuses_an_invalid_name(
    name: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(pack), f"{name}={odd}"]) == 1
    assert "is not a valid adapter name" in capsys.readouterr().err


def test_adapter_name_that_is_taken_or_unknown(pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(pack), f"odd={odd}"]) == 0
    assert main(["adapter", "add", str(pack), f"odd={odd}"]) == 1
    assert "has an adapter 'odd' already" in capsys.readouterr().err
    assert main(["adapter", "remove", str(pack), "even"]) == 1
    assert "the pack has no adapter 'even'; it has: odd" in capsys.readouterr().err


def test_adapter_of_the_draft_model_is_added_listed_and_removed(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the target's adapter of that name, and beside one whose name is that of no other's folder."""
    before = contents(pack)
    own = write_peft(tmp_path / "own", seed=1, role="draft")
    odd = write_peft(tmp_path / "odd", seed=2)
    assert main(["adapter", "add", str(pack), f"draft:odd={own}"]) == 0
    assert f"generate -m {pack} --adapter odd PROMPT" in capsys.readouterr().out
    for name in ("odd", "draft-odd", "draft"):
        assert main(["adapter", "add", str(pack), f"{name}={odd}"]) == 0
    capsys.readouterr()
    assert main(["adapter", "list", str(pack), "--json"]) == 0
    out = capsys.readouterr().out
    listed = json.loads(out.splitlines()[-1])
    assert {name: entry["role"] for name, entry in listed.items()} == {
        "draft:odd": "draft",
        "odd": "target",
        "draft-odd": "target",
        "draft": "target",
    }
    assert len({entry["file"] for entry in listed.values()}) == 4
    assert not any(":" in entry["file"] for entry in listed.values())
    with edgedecode.load(pack, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        with pytest.raises(edgedecode.CapabilityError, match="is for the draft"):
            pair.adapter("draft:odd")
        assert pair.adapter("odd").name == "odd"
    assert main(["adapter", "add", str(pack), f"draft:odd={own}"]) == 1
    assert "has an adapter 'draft:odd' already" in capsys.readouterr().err
    for name in listed:
        assert main(["adapter", "remove", str(pack), name]) == 0
    after = contents(pack)
    assert json.loads(after.pop(MANIFEST_NAME)) == {**json.loads(before.pop(MANIFEST_NAME)), "adapters": {}}
    assert after == before
    assert not (pack / "adapters").exists()


@pytest.mark.parametrize("fault", ["the target's", "rank", "no draft model", "no lora graph"])
def test_adapter_that_the_draft_model_cannot_take_changes_nothing(
    fault: str, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank = 17 if fault == "rank" else 4
    own = write_peft(tmp_path / "own", seed=1, rank=rank, role="target" if fault == "the target's" else "draft")
    value = json.loads((pack / MANIFEST_NAME).read_text(encoding="utf-8"))
    if fault == "no draft model":
        del value["models"]["draft"]
    elif fault == "no lora graph":
        del value["models"]["draft"]["graphs"]["lora"]
    (pack / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    before = contents(pack)
    assert main(["adapter", "add", str(pack), f"draft:odd={own}"]) == 1
    err = capsys.readouterr().err
    assert {
        "the target's": "the adapter is for another model",
        "rank": "export the pack again with --lora-rank 17",
        "no draft model": "the adapter 'draft:odd' is for a draft model, which the pack does not have",
        "no lora graph": "the pack's draft takes no adapters: export it again with --graphs base,lora",
    }[fault] in err
    assert err.count("\n") == 1
    assert contents(pack) == before


def test_adapter_add_keeps_a_source_in_the_place_of_the_copy(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a folder of which only a file is there, through a link."""
    own = write_peft(pack / "adapters" / "odd", seed=1)
    linked = write_peft(tmp_path / "linked", seed=1)
    (linked / WEIGHTS).unlink()
    (linked / WEIGHTS).symlink_to(own / WEIGHTS)
    before = contents(pack)
    for source in (own, linked, own / ".." / "odd"):
        assert main(["adapter", "add", str(pack), f"odd={source}"]) == 1
        err = capsys.readouterr().err
        assert "move it out of the pack first" in err
        assert err.count("\n") == 1
        assert contents(pack) == before
    assert main(["adapter", "add", str(pack), f"even={own}"]) == 0


def test_adapter_add_refuses_a_name_that_differs_from_anothers_in_case(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a file system that ignores case, the one would replace the other."""
    odd = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(pack), f"odd={odd}"]) == 0
    before = contents(pack)
    assert main(["adapter", "add", str(pack), f"Odd={odd}"]) == 1
    assert "the pack has the file adapters/odd/" in capsys.readouterr().err
    assert contents(pack) == before


def test_adapter_remove_keeps_files_that_another_adapter_uses(pack: Path, tmp_path: Path) -> None:
    assert main(["adapter", "add", str(pack), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    value = json.loads((pack / MANIFEST_NAME).read_text(encoding="utf-8"))
    value["adapters"]["twin"] = value["adapters"]["odd"]
    (pack / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    assert main(["adapter", "remove", str(pack), "odd"]) == 0
    with edgedecode.load(pack, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        assert pair.adapter("twin").name == "twin"
    assert main(["adapter", "remove", str(pack), "twin"]) == 0
    assert not (pack / "adapters" / "odd" / WEIGHTS).exists()


def test_adapter_list_names_the_engines_that_the_model_has(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adapter", "add", str(pack), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    value = json.loads((pack / MANIFEST_NAME).read_text(encoding="utf-8"))
    value["models"]["target"].pop("gguf_plan")
    (pack / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    capsys.readouterr()
    assert main(["adapter", "list", str(pack)]) == 0
    out = capsys.readouterr().out
    assert "onnx" in out
    assert "llama" not in out


@pytest.mark.parametrize("words", [["add"], ["add", "pack"], ["add", "pack", "odd"], ["add", "pack", "=x"], ["remove"]])
def test_adapter_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["adapter", *words])
    assert ended.value.code == 2


def test_adapter_without_an_action_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapter"]) == 0
    assert "adapters" in capsys.readouterr().out


def test_adapter_add_refuses_a_gguf_file_for_an_onnx_pack(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"GGUF")
    before = contents(pack)
    assert main(["adapter", "add", str(pack), f"odd={tmp_path / 'odd.gguf'}"]) == 1
    assert "give the folder that PEFT saved" in capsys.readouterr().err
    assert contents(pack) == before
