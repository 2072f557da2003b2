"""`adapter`: add and remove a pack's adapters; a failed change prints one line and leaves the pack as it was."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedecode
from edgedecode import LoadOptions
from edgedecode.adapters.peft_folder import CONFIG, WEIGHTS
from edgedecode.cli import main
from edgedecode.pack.manifest import MANIFEST_NAME
from tests.apps.packs import change_manifest, contents
from tests.conftest import Refusal
from tests.peft_folders import write_peft


def test_adapter_add_list_remove(pack_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(pack_copy)
    odd = write_peft(tmp_path / "odd", seed=1, invocation=(1, 307, 201))
    assert main(["adapter", "add", str(pack_copy), f"odd={odd}"]) == 0
    assert "active from its invocation tokens on" in capsys.readouterr().out
    assert main(["adapter", "list", str(pack_copy)]) == 0
    assert "onnx, llama" in capsys.readouterr().out
    assert main(["adapter", "list", str(pack_copy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["odd"]["rank"] == 4
    with edgedecode.load(pack_copy, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        assert pair.adapter("odd").name == "odd"
    assert main(["adapter", "remove", str(pack_copy), "odd"]) == 0
    assert main(["adapter", "list", str(pack_copy)]) == 0
    assert "has no adapters" in capsys.readouterr().out
    after = contents(pack_copy)
    assert json.loads(after.pop(MANIFEST_NAME)) == {**json.loads(before.pop(MANIFEST_NAME)), "adapters": {}}
    assert after == before


def test_the_printed_command_runs(pack_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = pack_copy.rename(tmp_path / "a pack; it's mine")
    assert main(["adapter", "add", str(pack), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    program, *words, prompt = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert (program, prompt) == ("edgedecode", "PROMPT")
    assert main([*words, prompt, "-n", "2"]) == 0


def rewrite(**changed: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8")) | changed
        (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")

    return change


def damage(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n")


def without(*place: str) -> Callable[[dict[str, Any]], None]:
    """Return a change of the manifest that removes an entry."""

    def change(value: dict[str, Any]) -> None:
        for each in place[:-1]:
            value = value[each]
        del value[place[-1]]

    return change


BAD: list[tuple[Callable[[Path], object], str]] = [
    (damage, "is not a usable safetensors file"),
    (pointer, "is Git LFS's pointer to the file, not the file"),
    (lambda folder: (folder / CONFIG).unlink(), "cannot be read"),
    (rewrite(use_dora=True), "uses use_dora"),
    (rewrite(peft_type="IA3"), "is of type IA3"),
    (rewrite(r=64), "but adapter_config.json gives rank 64"),
    (rewrite(init_lora_weights="pissa"), "changes the base model's weights"),
    (rewrite(lora_alpha=1e300), "that are not finite numbers"),
    (rewrite(alora_invocation_tokens=[999_999]), "the adapter is for another model"),
    (shutil.rmtree, "cannot be read"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message for _, message in BAD])
@pytest.mark.filterwarnings("error")
def test_an_unusable_adapter_is_refused_and_changes_nothing(
    change: Callable[[Path], object], message: str, pack_copy: Path, tmp_path: Path, refusal: Refusal
) -> None:
    odd, before = write_peft(tmp_path / "odd", seed=1), contents(pack_copy)
    change(odd)
    assert message in refusal("adapter", "add", pack_copy, f"odd={odd}")
    assert contents(pack_copy) == before


NO_DRAFT, NO_LORA = without("models", "draft"), without("models", "draft", "graphs", "lora")


@pytest.mark.parametrize(
    ("role", "rank", "change", "message"),
    [
        ("target", 4, dict, "the adapter is for another model"),
        ("draft", 17, dict, "export the pack again with --lora-rank 17"),
        ("draft", 4, NO_DRAFT, "the adapter 'draft:odd' is for a draft model, which the pack does not have"),
        ("draft", 4, NO_LORA, "the pack's draft takes no adapters: export it again with --graphs base,lora"),
    ],
)
def test_adapter_that_the_draft_model_cannot_take_changes_nothing(
    role: str, rank: int, change: Any, message: str, pack_copy: Path, tmp_path: Path, refusal: Refusal
) -> None:
    own = write_peft(tmp_path / "own", seed=1, rank=rank, role=role)
    change_manifest(pack_copy, change)
    before = contents(pack_copy)
    assert message in refusal("adapter", "add", pack_copy, f"draft:odd={own}")
    assert contents(pack_copy) == before


@pytest.mark.parametrize(
    "name", ["off", "a/b", "..", ".x", "ü", "x" * 65, "target:a", "draft:off", "draft:a:b", "draft:"]
)
def test_adapter_add_refuses_names_ranks_and_files(
    name: str, pack_copy: Path, tmp_path: Path, refusal: Refusal
) -> None:
    large, before = write_peft(tmp_path / "large", seed=1, rank=17), contents(pack_copy)
    (tmp_path / "odd.gguf").write_bytes(b"GGUF")
    assert "is not a valid adapter name" in refusal("adapter", "add", pack_copy, f"{name}={large}")
    assert "export the pack again with --lora-rank 17" in refusal("adapter", "add", pack_copy, f"large={large}")
    assert "odd.gguf is truncated or damaged" in refusal("adapter", "add", pack_copy, f"odd={tmp_path / 'odd.gguf'}")
    assert contents(pack_copy) == before


def test_adapter_name_that_is_taken_or_unknown(pack_copy: Path, tmp_path: Path, refusal: Refusal) -> None:
    odd = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(pack_copy), f"odd={odd}"]) == 0
    assert "has an adapter 'odd' already" in refusal("adapter", "add", pack_copy, f"odd={odd}")
    assert "the pack has no adapter 'even'; it has: odd" in refusal("adapter", "remove", pack_copy, "even")


def test_adapter_of_the_draft_model_is_added_listed_and_removed(
    pack_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    """Before the target's adapter of that name, and beside one whose name is that of no other's folder."""
    before = contents(pack_copy)
    own = write_peft(tmp_path / "own", seed=1, role="draft")
    odd = write_peft(tmp_path / "odd", seed=2)
    assert main(["adapter", "add", str(pack_copy), f"draft:odd={own}"]) == 0
    assert f"generate -m {pack_copy} --adapter odd PROMPT" in capsys.readouterr().out
    for name in ("odd", "draft-odd", "draft"):
        assert main(["adapter", "add", str(pack_copy), f"{name}={odd}"]) == 0
    capsys.readouterr()
    assert main(["adapter", "list", str(pack_copy), "--json"]) == 0
    out = capsys.readouterr().out
    listed = json.loads(out.splitlines()[-1])
    roles = {"draft:odd": "draft", "odd": "target", "draft-odd": "target", "draft": "target"}
    assert {name: entry["role"] for name, entry in listed.items()} == roles
    assert len({entry["file"] for entry in listed.values()}) == 4
    assert not any(":" in entry["file"] for entry in listed.values())
    with edgedecode.load(pack_copy, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        with pytest.raises(edgedecode.CapabilityError, match="is for the draft"):
            pair.adapter("draft:odd")
        assert pair.adapter("odd").name == "odd"
    assert "has an adapter 'draft:odd' already" in refusal("adapter", "add", pack_copy, f"draft:odd={own}")
    for name in listed:
        assert main(["adapter", "remove", str(pack_copy), name]) == 0
    after = contents(pack_copy)
    assert json.loads(after.pop(MANIFEST_NAME)) == {**json.loads(before.pop(MANIFEST_NAME)), "adapters": {}}
    assert after == before
    assert not (pack_copy / "adapters").exists()


def test_adapter_add_keeps_a_source_in_the_place_of_the_copy(pack_copy: Path, tmp_path: Path, refusal: Refusal) -> None:
    """Also a folder of which only a file is there, through a link."""
    own = write_peft(pack_copy / "adapters" / "odd", seed=1)
    linked = write_peft(tmp_path / "linked", seed=1)
    (linked / WEIGHTS).unlink()
    (linked / WEIGHTS).symlink_to(own / WEIGHTS)
    before = contents(pack_copy)
    for source in (own, linked, own / ".." / "odd"):
        assert "move it out of the pack first" in refusal("adapter", "add", pack_copy, f"odd={source}")
        assert contents(pack_copy) == before
    assert main(["adapter", "add", str(pack_copy), f"even={own}"]) == 0


def test_adapter_add_refuses_a_name_that_differs_from_anothers_in_case(
    pack_copy: Path, tmp_path: Path, refusal: Refusal
) -> None:
    """On a file system that ignores case, the one would replace the other."""
    odd = write_peft(tmp_path / "odd", seed=1)
    assert main(["adapter", "add", str(pack_copy), f"odd={odd}"]) == 0
    before = contents(pack_copy)
    assert "the pack has the file adapters/odd/" in refusal("adapter", "add", pack_copy, f"Odd={odd}")
    assert contents(pack_copy) == before


def test_adapter_remove_keeps_files_that_another_adapter_uses(pack_copy: Path, tmp_path: Path) -> None:
    assert main(["adapter", "add", str(pack_copy), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    change_manifest(pack_copy, lambda value: value["adapters"].update(twin=value["adapters"]["odd"]))
    assert main(["adapter", "remove", str(pack_copy), "odd"]) == 0
    with edgedecode.load(pack_copy, runtime="onnx", adapters=True, options=LoadOptions(verify=True)) as pair:
        assert pair.adapter("twin").name == "twin"
    assert main(["adapter", "remove", str(pack_copy), "twin"]) == 0
    assert not (pack_copy / "adapters" / "odd" / WEIGHTS).exists()


def test_adapter_list_names_the_engines_that_the_model_has(
    pack_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["adapter", "add", str(pack_copy), f"odd={write_peft(tmp_path / 'odd', seed=1)}"]) == 0
    change_manifest(pack_copy, lambda value: value["models"]["target"].pop("gguf_plan"))
    capsys.readouterr()
    assert main(["adapter", "list", str(pack_copy)]) == 0
    out = capsys.readouterr().out
    assert "onnx" in out
    assert "llama" not in out


def test_adapter_without_an_action_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapter"]) == 0
    assert "adapters" in capsys.readouterr().out
