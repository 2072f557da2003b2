"""`show`: a pack's manifest as tables, and the check of its files."""

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edgedecode.apps.colour import Paint
from edgedecode.apps.show.manifest_tables import facts
from edgedecode.cli import main
from edgedecode.library.names import BUNDLED_PACK
from edgedecode.pack.entries import OutsideFile
from edgedecode.pack.manifest import MANIFEST_NAME, Manifest
from tests.apps.packs import change_manifest
from tests.conftest import Refusal

pytestmark = pytest.mark.usefixtures("pack")


def rows(text: str) -> dict[str, str]:
    """Return the rows of the tables, by their labels."""
    split = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
    return {name: rest.strip() for name, rest in split}


def test_show_full_prints_every_fact_of_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--full"]) == 0
    found = rows(capsys.readouterr().out)
    manifest = Manifest.load(BUNDLED_PACK)
    assert found["models.target.architecture"] == "LlamaForCausalLM"
    assert found["models.target.kernel_noise"] == f"{manifest.models['target'].kernel_noise:.4g}"
    assert found["models.target.parity"].startswith("tokens 88, deviation 3.504, ")
    assert found["files.tokenizer.json"] == (
        f"nbytes {manifest.files['tokenizer.json'].nbytes}, sha256 {manifest.files['tokenizer.json'].sha256[:12]}"
    )
    assert {f"models.{role}.graphs.{name}" for role, each in manifest.models.items() for name in each.graphs} <= {
        *found
    }
    assert {f"files.{name}" for name in manifest.files} <= found.keys()


def test_show_prints_eight_lines_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 8
    found = rows("\n".join(lines))
    assert found["target"].startswith("10.0M parameters, 11.8 MB (int8, blocks of 32")
    assert found["draft"].startswith("1.4M parameters")
    assert found["loss"] == "KL 0.00073 from the original weights, same top token 97.7%, over 1024 positions"
    assert found["licence"] == "Apache-2.0"


def test_show_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(BUNDLED_PACK), "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    manifest = Manifest.load(BUNDLED_PACK)
    assert Manifest.from_json(value) == manifest
    assert value["nbytes"] == sum(file.nbytes for file in manifest.files.values())
    assert "verified" not in value


def test_facts_name_nested_values_by_their_paths_and_leave_out_empty_ones() -> None:
    value = {
        "name": "demo",
        "nothing": None,
        "file": {"nbytes": 3, "kind": "", "sha256": "a" * 64},
        "model": {"graphs": {"base": {"inputs": ["a", "b", "c", "d", "e"]}}, "empty": {}, "share": 0.123456},
        "points": [{"up": 1.0}, {"up": 0.5}],
        "notes": ["one", "[b]not markup[/b]"],
        "models_digest": "b" * 64,
    }
    assert dict(facts(value)) == {
        "name": "demo",
        "file": f"nbytes 3, sha256 {'a' * 12}",
        "model.graphs.base": "inputs a, b, c, d, … (5 in all)",
        "model.share": "0.1235",
        "points.1": "up 1",
        "points.2": "up 0.5",
        "notes.1": "one",
        "notes.2": "[b]not markup[/b]",
        "models_digest": "b" * 12,
    }


def test_show_verify_checks_the_files(pack_copy: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal) -> None:
    assert main(["show", str(pack_copy), "--full", "--verify"]) == 0
    count = len(Manifest.load(pack_copy).files)
    assert f"OK: all {count} files match the manifest" in capsys.readouterr().out
    assert main(["show", "--full", str(pack_copy), "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    path = pack_copy / "draft" / "weights.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    assert f"{path} is damaged: its sha256 is" in refusal("show", pack_copy, "--full", "--verify")


def test_show_prints_and_verifies_weights_outside_the_pack(
    pack_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    """`import` leaves weights where they are: they are listed by path and hashed by --verify."""
    manifest = Manifest.load(pack_copy)
    outside = tmp_path / "elsewhere" / "weights.bin"
    outside.parent.mkdir()
    shutil.move(pack_copy / "target" / "weights.bin", outside)
    file = manifest.files["target/weights.bin"]
    files = {name: entry for name, entry in manifest.files.items() if name != "target/weights.bin"}
    moved = OutsideFile(str(outside), file.nbytes, file.sha256)
    changed = replace(manifest, files=files, outside={"target/weights.bin": moved})
    (pack_copy / MANIFEST_NAME).write_text(changed.to_json(), encoding="utf-8")
    assert main(["show", str(pack_copy), "--full", "--verify"]) == 0
    printed = capsys.readouterr().out
    assert rows(printed)["outside.target/weights.bin"].startswith(f"path {outside}, ")
    assert f"OK: all {len(manifest.files)} files match the manifest" in printed
    outside.write_bytes(outside.read_bytes()[:-1] + b"x")
    assert "elsewhere/weights.bin" in refusal("show", str(pack_copy), "--full", "--verify")


def test_verbs_escape_control_characters_of_a_manifest(pack_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (pack_copy / MANIFEST_NAME).read_text(encoding="utf-8")
    value = json.loads(text)
    hostile = "\x1b]0;owned\x07\x9b2J\u202e\u2028\x08"
    value |= {"name": f"n{hostile}", "created_by": f"c{hostile}", "tokenizer_digest": f"t{hostile}"}
    entry = value["models"]["target"]
    entry |= {"license": f"l{hostile}", "source": f"s{hostile}", "notes": [f"o{hostile}"], "quantization": hostile}
    entry |= {"architecture": f"a{hostile}", "parity": {f"p{hostile}": 1.0}}
    entry["graphs"] = {f"g{hostile}": entry["graphs"]["base"] | {"capabilities": [hostile], "kv_type": hostile}}
    value["models"][f"r{hostile}"] = entry
    value["adapters"] = {
        f"d{hostile}": {"file": "tokenizer.json", "role": f"r{hostile}", "rank": 1, "alpha": 1.0, "modules": [hostile]}
    }
    value["files"]["tokenizer.json"]["sha256"] = f"f{hostile}"
    (pack_copy / MANIFEST_NAME).write_text(json.dumps(value), encoding="utf-8")
    assert main(["show", "--full", str(pack_copy)]) == 0
    assert main(["devices", "-m", str(pack_copy)]) == 1  # no file has this digest
    assert main(["generate", "-m", str(pack_copy), "-p", "a"]) == 1
    printed = capsys.readouterr()
    assert r"n\x1b]0;owned\x07" in printed.out
    assert [mark for mark in printed.out + printed.err if mark in "\x1b\x07\x9b\u202e\u2028\x08"] == []


def test_show_truncates_a_very_long_text(pack_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folding 50,000 spaces would otherwise take a minute."""
    change_manifest(pack_copy, lambda value: value.update(name="\u00d7 " * 2_500))
    assert main(["show", "--full", str(pack_copy)]) == 0
    assert capsys.readouterr().out.count("\u00d7") == 1000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_paint_escapes_control_characters_only_on_a_terminal() -> None:
    text = "a\x1b[2J\tb\n"
    assert Paint.for_stream(Terminal(), when="never").paint(text, "target") == "a\\x1b[2J\tb\n"
    assert Paint.for_stream(Terminal(), when="always").paint(text, "model") == "\x1b[32ma\\x1b[2J\tb\n\x1b[0m"
    assert Paint.for_stream(io.StringIO()).paint(text, "model") == text


def test_show_prints_nothing_while_it_locks_the_pack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    @contextmanager
    def watched(root: Path) -> Iterator[None]:
        yield
        printed.append(capsys.readouterr().out)

    monkeypatch.setattr("edgedecode.apps.show.command.opening", watched)
    assert main(["show", "--verify"]) == 0
    assert printed == [""]
    assert capsys.readouterr().out.rstrip().endswith("files match the manifest")
