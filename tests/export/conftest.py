"""Shared fixtures of the export tests, which need the training frameworks and skip without them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

for _package in ("torch", "transformers", "onnxruntime_genai", "onnx_ir", "safetensors", "onnxruntime"):
    pytest.importorskip(_package, reason="the export extras are not installed")

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from edgedecode.arrays import FloatArray  # noqa: E402
from edgedecode.cli import main  # noqa: E402
from edgedecode.decoding.model import LanguageModel  # noqa: E402
from edgedecode.engines.interface import ModelRequest  # noqa: E402
from edgedecode.engines.registry import find_runtime  # noqa: E402
from edgedecode.export import model_export  # noqa: E402
from edgedecode.export.graph.graph_request import WHOLE, GraphRequest, Span  # noqa: E402
from edgedecode.export.graph.quantize import Scheme  # noqa: E402
from edgedecode.export.graph.recipe import Recipe  # noqa: E402
from edgedecode.export.pair_export import PairRequest, export_pair  # noqa: E402
from edgedecode.export.recipes import activation_choice  # noqa: E402
from edgedecode.export.stages import Stages  # noqa: E402
from edgedecode.memory.budget import Budget  # noqa: E402
from edgedecode.pack.manifest import Manifest, ModelEntry  # noqa: E402
from tests.made_once import made_once, run_folder  # noqa: E402

from .shapes import IN_LLAMA_CPP, SHAPES  # noqa: E402
from .tiny import TinyModel, write_model  # noqa: E402

Export = Callable[..., Manifest]
SHORT_TEXT = 128


def recipe(bits: int, *, head_bits: int | None = None, block_size: int = 32) -> Recipe:
    """Return the recipe that the command line would create."""
    head = head_bits or (8 if bits <= 8 else bits)
    return Recipe(*(Scheme(width, block_size if width <= 8 else 0) for width in (bits, head)))


def export(
    target: Path,
    out: Path,
    *,
    draft: Path | None = None,
    noise: int = 0,
    stored: Recipe | None = None,
    graphs: GraphRequest | None = None,
    calibration: Path | None = None,
    activations: str = "8",
    gguf: bool = False,
    span: Span = WHOLE,
) -> Manifest:
    """Export as the command does; default: 8 bits (activations too), and no noise measurement."""
    request = PairRequest(
        target=str(target),
        draft=str(draft) if draft else None,
        out=out,
        recipe=stored or recipe(8),
        noise_positions=noise,
        graphs=graphs or GraphRequest(),
        calibration_text=calibration,
        activations=activations,
        gguf=gguf,
        span=span,
    )
    return export_pair(request, Stages())


def run(*words: str | Path) -> int:
    """Run a command; return its exit code."""
    return main([str(word) for word in words])


def opened(entry: ModelEntry, root: Path, *needs: str, size: int | None = None) -> LanguageModel:
    """Open a model on the processor; size: of the vocabulary."""
    request = ModelRequest(entry, root, "target", size or entry.rows, Budget(), threads=1, needs=needs)
    return find_runtime("onnx").open(request)


def logits_of(model: LanguageModel, tokens: Sequence[int], *, width: int = 256) -> FloatArray:
    """Return the logits of all tokens, in passes of `width` rows."""
    state, rows = model.new_state(len(tokens)), []
    for start in range(0, len(tokens), width):
        piece = tokens[start : start + width]
        rows.append(model.forward(piece, state, rows="all").logits.copy())
        state.keep(range(len(piece)))
    state.close()
    return np.concatenate(rows)


def engine_logits(manifest: Manifest, pack: Path, tokens: list[int]) -> FloatArray:
    """Return the logits of a pack's target in one pass."""
    model = opened(manifest.models["target"], pack)
    try:
        return logits_of(model, tokens)
    finally:
        model.close()


def framework_logits(folder: Path, tokens: list[int]) -> FloatArray:
    """Return transformers' logits."""
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return np.asarray(network(torch.tensor([tokens])).logits[0].numpy())


def random_tokens(count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(0, 320, count)]


@dataclass(frozen=True, slots=True)
class Floats:
    """A random model, and its pack with float weights and, if llama.cpp runs it, a GGUF file of them."""

    root: Path

    @property
    def pack(self) -> Path:
        return self.root / "pack"

    @property
    def entry(self) -> ModelEntry:
        return Manifest.load(self.pack).models["target"]

    def expected(self, count: int = 100) -> FloatArray:
        """Return transformers' logits of `random_tokens(count)`."""
        logits: FloatArray = np.load(self.root / "logits.npy")
        return logits[:count]


@pytest.fixture(scope="session")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Floats]:
    """Return a function that exports one of `SHAPES`, once a run. Tests must not change the pack."""

    def exported(name: str) -> Floats:
        def make(out: Path) -> None:
            model = write_model(out / "model", SHAPES[name])
            gguf = name in IN_LLAMA_CPP and find_spec("gguf") is not None
            export(model, out / "pack", stored=recipe(32), gguf=gguf)
            np.save(out / "logits.npy", framework_logits(model, random_tokens(100)))

        return Floats(made_once(run_folder(tmp_path_factory) / "floats" / name.replace(" ", "-"), make))

    return exported


@pytest.fixture(scope="module", autouse=True)
def short_measurements() -> Iterator[None]:
    """Measure activations over a short text: most tests do not check the result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activation_choice, "TOKENS", SHORT_TEXT)
        patch.setattr(model_export, "CHOICE_TOKENS", SHORT_TEXT)
        yield


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama folder; tests that change it copy it."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama", TinyModel())
