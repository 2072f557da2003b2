"""Downloads of a hub model: nothing large is fetched for a model or an output folder that is refused."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgedecode.errors import EdgeDecodeError, ExportError
from edgedecode.export.pair_export import PairRequest, export_pair
from edgedecode.export.stages import Stages
from tests.small_tokenizers import byte_fallback

from .conftest import export, recipe
from .test_refusals import configure

pytestmark = pytest.mark.export

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """A fake hub: folders by id, and the file names that each call downloaded."""

    cache: Path
    models: dict[str, Path] = field(default_factory=dict)
    calls: list[list[str]] = field(default_factory=list)
    away: bool = False

    def model_info(self, name: str, *, timeout: float, files_metadata: bool) -> SimpleNamespace:
        if self.away:
            raise ConnectionError("no route to the hub")
        assert files_metadata
        weights = self.models[name] / "model.safetensors"
        files = [("model.safetensors", weights.stat().st_size), ("onnx/extra.safetensors", 10), ("config.json", 1)]
        siblings = [SimpleNamespace(rfilename=file, size=size) for file, size in files]
        return SimpleNamespace(sha=COMMIT, siblings=siblings)

    def snapshot_download(
        self,
        name: str,
        *,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        revision: str | None = None,
        local_files_only: bool = False,
        tqdm_class: Any = None,
    ) -> str:
        assert revision in (None, COMMIT)
        snapshot = self.cache / name.replace("/", "--") / "snapshots" / COMMIT
        if self.away:
            missing = "*.safetensors" in allow_patterns and not list(snapshot.glob("*.safetensors"))
            if missing or not snapshot.is_dir():
                raise FileNotFoundError("not in the cache")
            return str(snapshot)
        assert not local_files_only
        snapshot.mkdir(parents=True, exist_ok=True)
        bar = tqdm_class(unit="B", total=0, name="huggingface_hub.snapshot_download", desc="bytes")
        transfer = tqdm_class(unit="B", total=0, name="huggingface_hub.snapshot_download.transfer")
        self.calls.append([])
        for path in sorted(path for path in self.models[name].rglob("*") if path.is_file()):
            below = path.relative_to(self.models[name]).as_posix()
            wanted = any(fnmatchcase(below, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatchcase(below, pattern) for pattern in ignore_patterns):
                self.calls[-1].append(below)
                shutil.copyfile(path, snapshot / below)
                bar.update(path.stat().st_size)
                transfer.update(path.stat().st_size)
        return str(snapshot)

    @property
    def weights_downloaded(self) -> bool:
        return any(name.endswith(".safetensors") for call in self.calls for name in call)


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A fake hub with two models of one family; a test may change the first model's folder."""
    pytest.importorskip("huggingface_hub")
    fake = Hub(tmp_path / "cache")
    fake.models["some/target"] = Path(shutil.copytree(llama, tmp_path / "target"))
    fake.models["some/draft"] = llama
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake.snapshot_download)
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: fake)
    return fake


def test_hub_texts_are_downloaded_first_and_the_commit_is_recorded(hub: Hub, tmp_path: Path) -> None:
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
    "unsupported head size": configure(head_dim=24),
    "short context": configure(max_position_embeddings=32),
    "another tokenizer": lambda folder: byte_fallback().save(str(folder / "tokenizer.json")),
    "end id out of range": configure(eos_token_id=5000),
}


@pytest.mark.parametrize("name", CASES)
def test_hub_downloads_no_weights_of_a_refused_pair(name: str, hub: Hub, tmp_path: Path) -> None:
    CASES[name](hub.models["some/target"])
    with pytest.raises(EdgeDecodeError):
        export(Path("some/target"), tmp_path / "pack", draft=Path("some/draft"))
    assert hub.calls
    assert not hub.weights_downloaded


def test_hub_downloads_nothing_for_a_refused_output_folder(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="is not empty"):
        export(Path("some/target"), tmp_path)
    assert not hub.calls


def test_hub_download_is_a_stage_in_bytes(
    hub: Hub, llama: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    totals, done = dict[str, int](), Counter[str]()

    @contextmanager
    def recorded(title: str, total: int) -> Iterator[Callable[[int], None]]:
        totals[title] = total
        yield lambda amount: done.update({title: amount})

    export_pair(PairRequest("some/target", None, tmp_path / "pack", recipe(8), noise_positions=0), Stages(recorded))
    size = (llama / "model.safetensors").stat().st_size
    assert totals["some/target: download"] == done["some/target: download"] == size
    assert capfd.readouterr().err == ""  # the hub's own bars would overwrite ours


def test_hub_offline_uses_the_cached_copy(hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = export(Path("some/target"), tmp_path / "first")
    assert not caplog.records
    hub.away = True
    second = export(Path("some/target"), tmp_path / "second")
    assert second.models == first.models
    (record,) = caplog.records
    assert "some/target: the hub cannot be reached (no route to the hub); using the cached copy" in record.message


def test_hub_offline_refuses_an_incomplete_copy(hub: Hub, tmp_path: Path) -> None:
    export(Path("some/target"), tmp_path / "first")
    (weights,) = hub.cache.rglob("*.safetensors")
    weights.unlink()
    hub.away = True
    for name in ("some/target", "some/draft"):
        with pytest.raises(
            ExportError, match=r"could not be downloaded from the hub .*check the name and the connection"
        ):
            export(Path(name), tmp_path / "second")
    assert not (tmp_path / "second").exists()
