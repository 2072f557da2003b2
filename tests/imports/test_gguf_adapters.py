"""Adapters of imported packs: the target matches weights with the delta merged, and drafts do not change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter

import edgedecode
from edgedecode import SamplingOptions, SessionDetails, SessionOptions
from edgedecode.adapters.adapter_change import add_adapter
from edgedecode.cli import main
from edgedecode.errors import ManifestError
from edgedecode.gguf.adapter import check_values
from edgedecode.gguf.contents import read_contents
from edgedecode.pack.manifest import Manifest
from edgedecode.sessions.chunks import Completion
from tests.conftest import Refusal
from tests.small_tokenizers import byte_level

from .files import HIDDEN, File, Floats, add_tensor, finished, write_adapter, write_file

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

NAME, RANK, ALPHA = "blk.0.attn_output.weight", 4, 6.0
PROMPT = "the quick fox and the lazy dog"


def lora_matrices() -> dict[str, Floats]:
    rng = np.random.default_rng(11)
    down, up = (rng.standard_normal(shape).astype(np.float32) / 4 for shape in ((RANK, HIDDEN), (HIDDEN, RANK)))
    return {f"{NAME}.lora_a": down, f"{NAME}.lora_b": up}


def delta() -> Floats:
    found = lora_matrices()
    return found[f"{NAME}.lora_b"] @ found[f"{NAME}.lora_a"] * np.float32(ALPHA / RANK)


def imported(out: Path, target: Path, *more: str, adapters: Mapping[str, Path] | None = None) -> Path:
    assert main(["import", "--target", str(target), *more, "--out", str(out)]) == 0
    for name, source in (adapters or {}).items():
        add_adapter(out, name, source)
    return out


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pair with an adapter that is always active and one that its tokens activate."""
    folder = tmp_path_factory.mktemp("adapters")
    target = write_file(folder / "a.gguf", byte_level())
    draft = write_file(folder / "b.gguf", byte_level())  # the target without the adapter
    formal = write_adapter(folder / "formal.gguf", modules=(), more=lora_matrices(), invocation=())
    activated = write_adapter(folder / "activated.gguf")
    adapters = {"formal": formal, "activated": activated}
    return imported(folder / "pack", target, "--draft", str(draft), adapters=adapters)


def complete(pack: Path, *, adapter: str | None, draft_max: int = 0) -> Completion:
    options = SessionOptions(
        draft_max=draft_max, sampling=SamplingOptions(), adapter=adapter, details=SessionDetails(ignore_eos=True)
    )
    with edgedecode.load(pack, runtime="llama") as pair, pair.session(options) as session:
        return session.generate(PROMPT, max_tokens=40)


def test_imported_adapter_matches_merged_weights(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for long prompts too, which are read in chunks."""
    merged = write_file(tmp_path / "merged.gguf", byte_level(), File(added={NAME: delta()}))
    wanted = complete(imported(tmp_path / "pack", merged), adapter=None).tokens
    monkeypatch.setattr("edgedecode.decoding.loop.PREFILL_CHUNK", 8)
    assert complete(pack, adapter="formal").tokens == wanted
    assert complete(pack, adapter=None).tokens != wanted


def test_imported_adapter_is_not_used_in_the_draft(pack: Path) -> None:
    drafted = complete(pack, adapter="formal", draft_max=4)
    assert drafted.tokens == complete(pack, adapter="formal").tokens
    assert drafted.stats.proposed > drafted.stats.accepted
    without_adapter = complete(pack, adapter=None, draft_max=4).stats
    assert without_adapter.accepted == without_adapter.proposed > 0


@pytest.mark.parametrize("more", [[], ["--copy"]], ids=["in place", "copied"])
def test_imported_adapter_of_the_draft_model_is_used_in_the_draft(tmp_path: Path, more: list[str]) -> None:
    target, draft = (write_file(tmp_path / name, byte_level()) for name in ("a.gguf", "b.gguf"))
    formal = write_adapter(tmp_path / "formal.gguf", modules=(), more=lora_matrices(), invocation=())
    adapters = dict.fromkeys(("formal", "draft:formal"), formal)
    pack = imported(tmp_path / "pack", target, "--draft", str(draft), *more, adapters=adapters)
    assert Manifest.load(pack).adapters["draft:formal"].role == "draft"
    assert complete(pack, adapter=None).tokens != complete(pack, adapter="formal").tokens
    stats = complete(pack, adapter="formal", draft_max=4).stats
    assert stats.accepted == stats.proposed > 0


def test_an_adapter_of_the_draft_model_is_refused_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level())
    file = write_adapter(tmp_path / "ones.gguf", invocation=())
    pack = imported(tmp_path / "pack", target)
    capsys.readouterr()
    assert "the adapter 'draft:ones' is for a draft model, which the pack does not have" in refusal(
        "adapter", "add", str(pack), f"draft:ones={file}"
    )


def test_imported_activated_adapter_is_off_without_its_tokens(pack: Path) -> None:
    assert complete(pack, adapter="activated").tokens == complete(pack, adapter=None).tokens


KINDS = GGUFValueType
BAD_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "signed": ({"invocation": (5, 6), "tokens": KINDS.INT32}, "is not a list of unsigned"),
    "negative": ({"invocation": (-5, 6), "tokens": KINDS.INT32}, "is not a list of unsigned"),
    "texts": ({"invocation": ("a", "b"), "tokens": KINDS.STRING}, "is not a list of unsigned"),
    "floats": ({"invocation": (5.5, float("nan")), "tokens": KINDS.FLOAT32}, "is not a list of unsigned"),
    "beyond": ({"invocation": (5, 4_000_000_000)}, "activated by the token 4000000000, but the model's vocabulary"),
    "nan": ({"more": {f"{NAME}.lora_a": np.full((4, HIDDEN), np.nan, np.float32)}}, "are not finite numbers"),
}


@pytest.mark.parametrize("bad", BAD_GGUF)
def test_a_gguf_adapter_that_cannot_be_used_is_refused(pack: Path, tmp_path: Path, refusal: Refusal, bad: str) -> None:
    changed, message = BAD_GGUF[bad]
    both = {f"{NAME}.lora_b": lora_matrices()[f"{NAME}.lora_b"], **changed.get("more", {})}
    file = write_adapter(tmp_path / "bad.gguf", **(changed | ({"more": both} if "more" in changed else {})))
    before = (pack / "edgedecode.json").read_bytes()
    assert message in refusal("adapter", "add", str(pack), f"bad={file}")
    assert (pack / "edgedecode.json").read_bytes() == before


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_finite_values_are_told_from_others_in_every_type(tmp_path: Path, kind: str) -> None:
    for spoilt in (1.0, float("inf")):
        writer = GGUFWriter(None, "llama")
        values = np.full((4, HIDDEN), 65504.0 if kind == "F16" else 3e38 if kind == "BF16" else 1.0, np.float32)
        values[3, 63] *= spoilt
        with np.errstate(all="ignore"):
            add_tensor(writer, f"{NAME}.lora_a", values, kind=kind)
        path = finished(writer, tmp_path / "a.gguf")
        if spoilt == 1.0:
            check_values(read_contents(path), path)
        else:
            with pytest.raises(ManifestError, match="are not finite numbers"):
                check_values(read_contents(path), path)


def test_adapter_add_takes_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], refusal: Refusal) -> None:
    target = write_file(tmp_path / "a.gguf", byte_level())
    file = write_adapter(tmp_path / "ones.gguf", invocation=())
    pack = imported(tmp_path / "pack", target)
    before = (pack / "edgedecode.json").read_text(encoding="utf-8")
    assert main(["adapter", "add", str(pack), f"ones={file}"]) == 0
    assert Manifest.load(pack).adapters["ones"].file == "adapters/ones/adapter.gguf"
    assert main(["adapter", "remove", str(pack), "ones"]) == 0
    assert not (pack / "adapters").exists()
    assert json.loads((pack / "edgedecode.json").read_text(encoding="utf-8")) == json.loads(before)
    capsys.readouterr()
    wrong = write_adapter(tmp_path / "wrong.gguf", hidden=32)
    assert "it is for another base" in refusal("adapter", "add", str(pack), f"wrong={wrong}")
    assert not (pack / "adapters").exists()
