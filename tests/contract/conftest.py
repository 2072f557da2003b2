"""One model per engine for the contract suite: every test must hold for each of them.

`EDGEDECODE_CONTRACT_PACK` may name a float pack, whose target is then tested too.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from weakref import WeakSet

import numpy as np
import pytest

from edgedecode import Pair, open_pack
from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.memory.budget import Budget
from edgedecode.pack import pack_tokenizer
from edgedecode.pack.manifest import Manifest, ModelEntry
from edgedecode.sessions import resources
from edgedecode.testing import TableModel, toy_tables
from tests.contract.toy_graph import ToyShape, write_toy

PACK = os.environ.get("EDGEDECODE_CONTRACT_PACK")
TOYS = ["toy", "toy engine", "toy lora", "toy kv8"]
PROVIDERS = ["webgpu", "openvino", "openvino window"]
NAMES = [*TOYS, *PROVIDERS, "llama", "table", "static", "static window", *(["pack"] if PACK else [])]


def assert_planned(figures: Mapping[str, int]) -> None:
    """Assert that a child process used no more memory than planned, and at most 5% or 8 MB less."""
    used, planned = figures["used"], figures["planned"]
    assert 0 < used <= planned <= max(1.05 * used, used + 8_000_000)


MEASURE = """
import json, sys
from importlib import import_module
from pathlib import Path
import edgedecode.open_pack  # as every process has
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.memory.budget import Budget
from edgedecode.memory.process_memory import resident_nbytes
from edgedecode.engines.interface import ModelRequest
fields, engine, rows = json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
fields["graphs"] = {name: Graph(**graph) for name, graph in fields["graphs"].items()}
entry, budget = ModelEntry(**fields), Budget(2**40)
runtime = getattr(import_module(f"edgedecode.runtimes.{engine}"), f"{engine.title()}Runtime")()
before = resident_nbytes()
request = ModelRequest(entry, Path(sys.argv[1]), "target", entry.rows, budget, threads=1, needs=sys.argv[5:])
model = runtime.open(request)
state, peak = model.new_state(1024, rows=rows), 0
for start in range(0, 1024, 256):
    model.forward([token % entry.rows for token in range(start, start + 256)], state)
    peak = max(peak, resident_nbytes())
state.crop(0)
for start in range(0, entry.rows, 256):  # every page of the embedding: it holds two rows or more
    model.forward([token % entry.rows for token in range(start, start + 256, 2)], state, rows="none")
    state.crop(0)
width = max(rows, 3)
model.forward(list(range(width)), state, parents=[-1] * (width - 1) + [0], rows="all")
peak = max(peak, resident_nbytes())
print(json.dumps({"used": peak - before, "planned": budget.used_nbytes}))
"""


def measured(engine: str, root: Path, entry: ModelEntry, *needs: str, rows: int = 1) -> dict[str, int]:
    """Return the used and the planned bytes of a child process that runs long passes and a tree."""
    words = [str(root), json.dumps(asdict(entry)), engine, str(rows), *needs]
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures: dict[str, int] = json.loads(done.stdout)
    print(words[2:], {name: round(value / 2**20, 1) for name, value in figures.items()})
    return figures


def sum_of(budget: Budget, prefix: str) -> int:
    return sum(lease.nbytes for lease in budget.leases if lease.name.startswith(prefix))


OPENED: WeakSet[LanguageModel] = WeakSet()
"""The models that were opened by a test, or by its fixtures."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Close the models that a test opened; those of a module's fixtures were opened before."""
    OPENED.clear()
    yield
    for model in OPENED:
        model.close()


class Opener:
    """Open toy graphs on ONNX Runtime, one folder per shape."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[ToyShape, ModelEntry] = {}

    def root(self, shape: ToyShape) -> Path:
        return self._folder / f"{abs(hash(shape)):x}"

    def entry(self, shape: ToyShape) -> ModelEntry:
        if shape not in self._entries:
            self._entries[shape] = write_toy(self.root(shape), shape)
        return self._entries[shape]

    def __call__(
        self,
        shape: ToyShape | None = None,
        *,
        budget: Budget | None = None,
        threads: int = 1,
        needs: Sequence[str] = (),
        provider: str = "cpu",
    ) -> LanguageModel:
        shape = shape or ToyShape()
        budget = budget or Budget()
        entry, root = self.entry(shape), self.root(shape)
        return open_entry(entry, root, budget=budget, threads=threads, needs=needs, provider=provider)


def request_of(
    entry: ModelEntry,
    root: Path,
    *,
    budget: Budget | None = None,
    threads: int | None = 1,
    needs: Sequence[str] = (),
    provider: str = "cpu",
    name: str = "target",
) -> ModelRequest:
    return ModelRequest(
        entry, root, name, entry.rows, budget or Budget(), threads=threads, provider=provider, needs=needs
    )


DAMAGE = ("missing", "empty", "half", "noise")


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "half": content[: len(content) // 2], "noise": b"\x93" * len(content)}[how])


def open_entry(
    entry: ModelEntry, root: Path, *, budget: Budget, threads: int = 1, needs: Sequence[str] = (), provider: str = "cpu"
) -> LanguageModel:
    runtimes = pytest.importorskip("edgedecode.runtimes.onnx")
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    runtime = runtimes.OnnxRuntime()
    request = request_of(entry, root, budget=budget, threads=threads, needs=needs, provider=provider)
    model: LanguageModel = runtime.open(request)
    OPENED.add(model)
    return model


def skip_without(provider: str) -> None:
    """Skip the test with the reason if a provider cannot run here."""
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    from edgedecode.runtimes.onnx.providers.provider import find_provider

    if problem := find_provider(provider).problem():
        pytest.skip(problem)


@pytest.fixture(scope="session")
def opener(tmp_path_factory: pytest.TempPathFactory) -> Opener:
    return Opener(tmp_path_factory.mktemp("toys"))


@pytest.fixture
def engine_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the models of this test on the engine's own kernels."""
    monkeypatch.setenv("EDGEDECODE_KERNELS", "engine")


def open_gguf(
    entry: ModelEntry, root: Path, *, budget: Budget, needs: tuple[str, ...] = (), threads: int = 1
) -> LanguageModel:
    """Open an entry's GGUF file with llama.cpp; skips where it is not installed."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("the llama extra is not installed")
    from edgedecode.runtimes.llama import LlamaRuntime

    model: LanguageModel = LlamaRuntime().open(request_of(entry, root, budget=budget, threads=threads, needs=needs))
    OPENED.add(model)
    return model


class GgufOpener:
    """Open toy models on llama.cpp, one folder per shape, architecture and quantization."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: dict[Path, ModelEntry] = {}

    def root(self, shape: ToyShape, architecture: str = "qwen2", quantization: str = "") -> Path:
        return self._folder / f"{architecture}{quantization}-{abs(hash(shape)):x}"

    def entry(self, shape: ToyShape, architecture: str = "qwen2", quantization: str = "") -> ModelEntry:
        root = self.root(shape, architecture, quantization)
        if root not in self._entries:
            write_toy_gguf = pytest.importorskip("tests.contract.toy_gguf", reason="gguf is missing").write_toy_gguf
            self._entries[root] = write_toy_gguf(root, shape, architecture=architecture, quantization=quantization)
        return self._entries[root]

    def __call__(
        self,
        shape: ToyShape | None = None,
        *,
        architecture: str = "qwen2",
        quantization: str = "",
        budget: Budget | None = None,
        needs: tuple[str, ...] = (),
    ) -> LanguageModel:
        shape = shape or ToyShape()
        entry = self.entry(shape, architecture, quantization)
        root = self.root(shape, architecture, quantization)
        return open_gguf(entry, root, budget=budget or Budget(), needs=needs)


@pytest.fixture(scope="session")
def gguf_opener(tmp_path_factory: pytest.TempPathFactory) -> GgufOpener:
    return GgufOpener(tmp_path_factory.mktemp("ggufs"))


@pytest.fixture(params=["opener", "gguf_opener"], ids=["onnx", "llama"])
def either(request: pytest.FixtureRequest) -> Callable[..., LanguageModel]:
    """Return what opens a toy: on each engine in turn."""
    opens: Callable[..., LanguageModel] = request.getfixturevalue(request.param)
    return opens


def _toy(opener: Opener) -> LanguageModel:
    return opener()


def _toy_engine(opener: Opener) -> LanguageModel:
    """Open a toy whose attention is the engine's, as where our kernels are not available."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEDECODE_KERNELS", "engine")
        return opener()


def _toy_of(*needs: str) -> Callable[[Opener], LanguageModel]:
    return lambda opener: opener(ToyShape(graphs=("base", "lora", "kv8")), needs=needs)


def _on(provider: str) -> Callable[[Opener], LanguageModel]:
    def make(opener: Opener) -> LanguageModel:
        skip_without(provider)
        return opener(provider=provider)

    return make


def _llama(opener: Opener) -> LanguageModel:
    return GgufOpener(opener.root(ToyShape()).with_name("ggufs"))()


def _table(opener: Opener) -> LanguageModel:
    return TableModel(toy_tables(61, seed=3))


def _static_of(provider: str = "cpu", **sizes: int) -> Callable[[Opener], LanguageModel]:
    """Return a function that opens graphs of fixed widths."""

    def made(opener: Opener) -> LanguageModel:
        skip_without(provider)
        add_static = pytest.importorskip("tests.contract.static_graph", reason="onnx_ir is missing").add_static
        shape = ToyShape(**sizes)
        entry = add_static(opener.root(shape), opener.entry(shape), slots=512)
        return open_entry(entry, opener.root(shape), budget=Budget(), needs=["static"], provider=provider)

    return made


def _pack(opener: Opener) -> LanguageModel:
    root = Path(str(PACK))
    return open_entry(Manifest.load(root).models["target"], root, budget=Budget())


MAKERS: dict[str, Callable[[Opener], LanguageModel]] = {
    "toy": _toy,
    "toy engine": _toy_engine,
    "toy lora": _toy_of("lora"),
    "toy kv8": _toy_of("kv:int8"),
    "webgpu": _on("webgpu"),
    "openvino": _static_of("openvino"),
    "openvino window": _static_of("openvino", window=24),
    "llama": _llama,
    "table": _table,
    "static": _static_of(),
    "static window": _static_of(window=24),
    "pack": _pack,
}


@pytest.fixture(scope="session", params=NAMES)
def model(request: pytest.FixtureRequest, opener: Opener) -> Iterator[LanguageModel]:
    made = MAKERS[request.param](opener)
    yield made
    made.close()


@pytest.fixture(scope="session")
def tokens(model: LanguageModel) -> list[int]:
    """Return 64 valid token ids."""
    ids = np.random.default_rng(5).integers(0, min(model.card.rows, model.card.vocabulary_size), 64)
    return [int(token) for token in ids]


# -- memory plans ------------------------------------------------------------------------------------------------------

ENGINES = {"onnx": "onnxruntime", "onnx, its own kernels": "onnxruntime", "llama": "llama_cpp"}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return an engine's name, with the process itself counted as zero so that limits mean the same in any process."""
    name: str = request.param
    pytest.importorskip(ENGINES[name])
    monkeypatch.setattr(pack_tokenizer, "process_nbytes", lambda budget: 0)
    for module in (open_pack, resources):
        monkeypatch.setattr(module, "VARIATION_NBYTES", 0)
    monkeypatch.setenv("EDGEDECODE_KERNELS", "engine" if name.endswith("own kernels") else "auto")
    return name.partition(",")[0]


def leased(pair: Pair) -> Counter[str]:
    sums: Counter[str] = Counter()
    for lease in pair.budget.leases:
        sums[lease.name] += lease.nbytes
    return +sums
