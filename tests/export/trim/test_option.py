"""`export … --trim-vocab`: trims the pack after the export; refused if the export makes no pack to trim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from edgedecode.cli import main
from edgedecode.errors import BudgetExceeded, ExportError
from edgedecode.export.cli import pack_tables
from edgedecode.export.trim import trim_pack as run
from edgedecode.export.trim import trimmed_graph
from edgedecode.pack.manifest import Manifest
from edgedecode.text.prompts import Prompt, read_prompts
from tests.conftest import Told


@pytest.mark.parametrize(("words", "size"), [([], None), (["400"], 400)])
def test_trim_vocab_trims_the_exported_pack(
    words: Sequence[str], size: int | None, toy: Path, cheap_rows: None, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    """The export itself is replaced by the toy pack."""
    monkeypatch.setattr(pack_tables, "shown", lambda make, *, out: {"pack": str(out)})
    monkeypatch.setattr(run, "TrimRequest", partial(run.TrimRequest, prompts=96, max_tokens=40))
    options = ("--target", "t", "--draft", "d", "--out", str(toy))
    report = told("export", *options, "--trim-vocab", *words)
    assert report["pack"] == str(toy)
    found = report["trim"]["size"]
    assert found is not None
    assert size in (None, found)
    manifest = Manifest.load(toy)
    assert manifest.located("trim").rows == found


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ExportError("the head is a Conv"), "the head is a Conv"),
        (BudgetExceeded("too much for 3 MB", table="a lease"), "too much for 3 MB\na lease"),
        (OSError(28, "No space left on device", "/x/trim.ids"), "No space left on device: /x/trim.ids"),
    ],
    ids=["refused", "budget", "disk"],
)
def test_trim_vocab_that_fails_reports_the_untrimmed_pack(
    error: Exception, message: str, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pack_tables, "shown", lambda make, *, out: {"pack": str(out)})
    monkeypatch.setattr(trimmed_graph, "write_trimmed", Mock(side_effect=error))
    assert main(["export", "--target", "t", "--draft", "d", "--out", str(toy), "--trim-vocab"]) == 1
    expected = f"edgedecode: the pack {toy} is complete and untrimmed (`edgedecode trim` tries again): {message}\n"
    assert capsys.readouterr().err.endswith(expected)
    assert Manifest.load(toy).models["draft"].trimmed is None


def test_read_prompts_with_a_default_family(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"turns": ["two", "three"], "category": "b"}\n')
    assert read_prompts(file, family="") == [Prompt("", (), ("one",)), Prompt("b", (), ("two", "three"))]
