"""What is downloaded of a hub model, and when: nothing large for a model or a place that is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from edgedecode.errors import EdgeDecodeError, ExportError
from edgedecode.export.inflate import inflate_model
from edgedecode.export.stages import Stages
from tests.small_tokenizers import byte_fallback

from .conftest import export
from .test_refusals import configure

pytestmark = pytest.mark.export

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Stands for the hub: folders by id, and the names of the files that each call asked for."""

    cache: Path
    models: dict[str, Path] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)

    def snapshot_download(
        self, name: str, *, revision: str | None, allow_patterns: list[str], ignore_patterns: list[str]
    ) -> str:
        assert revision in (None, COMMIT)
        snapshot = self.cache / name.replace("/", "--") / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        self.calls.append([])
        for path in sorted(path for path in self.models[name].rglob("*") if path.is_file()):
            below = path.relative_to(self.models[name]).as_posix()
            wanted = any(fnmatchcase(below, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatchcase(below, pattern) for pattern in ignore_patterns):
                self.calls[-1].append(below)
                shutil.copyfile(path, snapshot / below)
        return str(snapshot)

    @property
    def weights_asked(self) -> bool:
        return any(name.endswith(".safetensors") for call in self.calls for name in call)


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with two models of one family; a test may spoil the first one's folder."""
    pytest.importorskip("huggingface_hub")
    made = Hub(tmp_path / "cache")
    made.models["some/target"] = Path(shutil.copytree(llama, tmp_path / "target"))
    made.models["some/draft"] = llama
    monkeypatch.setattr("huggingface_hub.snapshot_download", made.snapshot_download)
    return made


def test_texts_come_first_and_the_commit_is_kept(hub: Hub, tmp_path: Path) -> None:
    folder = hub.models["some/target"]
    (folder / "COPYING").write_text("terms")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "extra.safetensors").write_bytes(b"not wanted")
    manifest = export(Path("some/target"), tmp_path / "pack", draft=Path("some/draft"))
    texts, _, *weights = hub.calls
    assert {"config.json", "tokenizer.json", "chat_template.jinja", "LICENSE", "COPYING", "README.md"} <= set(texts)
    assert weights == [["model.safetensors"]] * 2
    assert {role: entry.source for role, entry in manifest.models.items()} == {
        "target": f"some/target@{COMMIT}",
        "draft": f"some/draft@{COMMIT}",
    }


CASES: dict[str, Callable[[Path], None]] = {
    "quantized": configure(quantization_config={"quant_method": "gptq"}),
    "foreign heads": configure(head_dim=24),
    "short context": configure(max_position_embeddings=32),
    "another tokenizer": lambda folder: byte_fallback().save(str(folder / "tokenizer.json")),
    "end outside": configure(eos_token_id=5000),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_large_for_a_refused_pair(name: str, hub: Hub, tmp_path: Path) -> None:
    CASES[name](hub.models["some/target"])
    with pytest.raises(EdgeDecodeError):
        export(Path("some/target"), tmp_path / "pack", draft=Path("some/draft"))
    assert hub.calls
    assert not hub.weights_asked


def test_nothing_at_all_for_a_refused_place(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not empty"):
        export(Path("some/target"), tmp_path)
    with pytest.raises(ExportError, match="is not empty"):
        inflate_model("some/target", tmp_path, weights_nbytes=400_000, seed=0, stages=Stages())
    assert not hub.calls


def test_nothing_large_for_a_refused_inflation(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="already weighs"):
        inflate_model("some/target", tmp_path / "big", weights_nbytes=1000, seed=0, stages=Stages())
    assert not hub.weights_asked
