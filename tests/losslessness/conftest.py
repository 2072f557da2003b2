"""Packs for the losslessness tests: the bundled one, and the demo pair exported at 32 and 4 bits where possible."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import edgedecode
from edgedecode.library.names import BUNDLED_PACK
from tests.losslessness.adapters import ADAPTERS, ENGINES, HEADER
from tests.made_once import made_once, run_folder
from tests.peft_folders import list_adapter, write_peft

PROMPTS = Path(__file__).parents[2] / "apps" / "prompts.jsonl"


@pytest.fixture(scope="session")
def export_demo(demo_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Export the demo pair at these bits and trim its draft, once per run, with the project's own commands.

    Kernel noise and 16-bit activations are not measured: no test needs the first, nor the pair the second
    (test_activations.py).
    """

    def make(bits: int, pack: Path) -> None:
        from edgedecode.cli import main

        words = ["export", "--target", str(demo_pair / "target"), "--draft", str(demo_pair / "draft")]
        unmeasured = ["--noise-positions", "0", *(["--activations", "8"] if bits <= 8 else [])]
        assert main([*words, "--bits", str(bits), *unmeasured, "--out", str(pack)]) == 0
        few = ["--prompts", "12", "--max-tokens", "24"]
        assert main(["trim", str(pack), "--size", "2048", *few]) == 0

    def export(bits: int) -> Path:
        pytest.importorskip("torch", reason="the export extras are not installed")
        return made_once(run_folder(tmp_path_factory) / f"demo-pack-{bits}", partial(make, bits))

    return export


@pytest.fixture(scope="session")
def float_pair(export_demo: Callable[[int], Path]) -> Iterator[edgedecode.Pair]:
    with edgedecode.load(export_demo(32), threads=1) as pair:
        yield pair


@pytest.fixture(scope="session")
def int4_pair(export_demo: Callable[[int], Path]) -> Iterator[edgedecode.Pair]:
    with edgedecode.load(export_demo(4), threads=1) as pair:
        yield pair


@pytest.fixture(scope="session")
def bundled_pair() -> Iterator[edgedecode.Pair]:
    with edgedecode.load(BUNDLED_PACK) as pair:
        yield pair


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Return the held-out prompts, families interleaved so that a prefix contains some of each."""
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    families: dict[str, list[str]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(row["messages"][-1]["content"])
    deepest = max(len(texts) for texts in families.values())
    return [texts[index] for index in range(deepest) for texts in families.values() if index < len(texts)]


@pytest.fixture(scope="session")
def adapter_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the bundled pack with three adapters."""
    made = tmp_path_factory.mktemp("adapters") / "pack"
    shutil.copytree(BUNDLED_PACK, made)
    for seed, name in enumerate(ADAPTERS):
        folder = write_peft(made.parent / name, seed=seed, invocation=() if name == "ordinary" else HEADER)
        list_adapter(made, name, folder)
    return made


@pytest.fixture(scope="module", params=ENGINES)
def adapter_pair(request: pytest.FixtureRequest, adapter_pack: Path) -> Iterator[edgedecode.Pair]:
    pytest.importorskip(ENGINES[request.param])
    with edgedecode.load(adapter_pack, runtime=request.param, adapters=True) as made:
        yield made


@pytest.fixture(scope="module", params=["onnx", "llama"])
def pair(request: pytest.FixtureRequest) -> Iterator[edgedecode.Pair]:
    """The bundled pack on each engine."""
    pytest.importorskip({"onnx": "onnxruntime", "llama": "llama_cpp"}[request.param])
    with edgedecode.load(BUNDLED_PACK, runtime=request.param) as pair:
        yield pair
