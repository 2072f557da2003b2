"""Runs new graphs through the public runtime to check their parity with the reference and to measure kernel noise.

Also checks variant graphs: adapters' deltas, and the loss of an 8-bit KV cache.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgedecode.arrays import FloatArray
from edgedecode.decoding.model import AdapterModel, AdapterUse, LanguageModel, LowRank
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.kernel_choice import engine_kernels
from edgedecode.engines.kernel_noise import POSITIONS, KernelNoise, measure_noise
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import ExportError, InputError, ManifestError
from edgedecode.memory.budget import Budget
from edgedecode.pack.manifest import Graph, ModelEntry
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from .parity import (
    LOOSE,
    NODES,
    TOLERANCE,
    ParityText,
    agreement,
    check_exact,
    check_kernels,
    reference_rows,
    relative_error,
)
from .reference import Reference

_LENGTH = 48
"""Tokens of the parity text."""
_NARROW = 20
"""Sliding window used in the check, in positions: shorter than the parity text."""
_SHORT_LENGTH = 16
"""Tokens for checking a variant's exact graph: it is slow, and the base was checked on the full text."""
_TRIAL = "trial"
_SHARE = 0.3
"""Size of the trial adapter's deltas relative to typical weights: large enough to reveal a wrong sign."""
_TEXT = (
    "The quick brown fox jumps over the lazy dog. A farmer has 12 apples and gives 5 of them to a neighbour: "
    'how many are left? def add(a, b): return a + b {"name": "Ada", "city": "London", "year": 1843}'
)
_PROMPTS = (
    "Tell me a short story about a lighthouse.",
    "What is 17 + 25? Explain each step.",
    "Write a Python function that reverses a list.",
    "What is the capital of France, and what is it known for?",
    "Repeat this sentence three times: the early bird catches the worm.",
)


@dataclass(frozen=True, slots=True)
class CheckTexts:
    """The texts a model is checked on, as token ids."""

    text: ParityText
    prompts: tuple[tuple[int, ...], ...]
    vocabulary_size: int
    ends: Collection[int]
    noise_positions: int = POSITIONS

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, *, template: ChatTemplate | None, ends: Collection[int], context: int
    ) -> "CheckTexts":
        """Encode the fixed texts; prompts use the chat template if there is one that accepts them."""
        tokens = tokenizer.encode(_TEXT) or [0]
        prompts = [tokenizer.encode(_rendered(template, prompt))[: context // 2] or [0] for prompt in _PROMPTS]
        return cls(
            text=ParityText.of(tokens, length=min(_LENGTH, context - NODES)),
            prompts=tuple(tuple(prompt) for prompt in prompts),
            vocabulary_size=tokenizer.size,
            ends=ends,
        )


def check_parity(
    entry: ModelEntry, pack: Path, *, exact: str, reference: Reference, texts: CheckTexts
) -> Mapping[str, float]:
    """Compare a model with its reference; `exact` is the file of its graph whose products do not round activations.

    Raises ExportError if that graph differs by more than summation order, or the shipped one by more than rounding of
    activations could explain.
    """
    if entry.window > _NARROW:  # this checks the wiring, and the short text must be longer than the window
        entry, reference = replace(entry, window=_NARROW), reference.narrowed(_NARROW)
    expected = reference_rows(reference, texts.text)
    graph = replace(entry.graphs["base"], file=exact)
    exactly = replace(entry, graphs={"base": graph})
    with engine_kernels(), opened(exactly, pack, texts) as model:
        numbers = {"tokens": float(len(expected)), "deviation": float(expected.std())}
        numbers |= check_exact(model, texts.text, expected)
    with opened(exactly, pack, texts) as model:
        if model.card.kernels:  # our attention kernel; the engine's was checked above
            ours = check_exact(model, texts.text, expected)
            numbers |= {name: max(error, numbers[name]) for name, error in ours.items()}
    if min(entry.bits, entry.head_bits) < 16:
        with opened(entry, pack, texts) as model:
            numbers |= check_kernels(model, texts.text, expected)
    return numbers


def check_file(entry: ModelEntry, pack: Path, *, reference: Reference, texts: CheckTexts) -> Mapping[str, float]:
    """Compare a model that runs from its GGUF file with its reference, in one pass, after a crop and in pieces.

    Raises ExportError if it differs by more than summation order, or rounding of activations, could explain.
    """
    length = len(texts.text.text)
    expected = reference.logits(texts.text.text, visible=np.tri(length, dtype=np.bool_), positions=range(length))
    check = check_kernels if min(entry.bits, entry.head_bits) < 16 else check_exact
    with opened(entry, pack, texts) as model:
        numbers = check(model, texts.text, expected)
    return {"tokens": float(length), "deviation": float(expected.std()), **numbers}


def check_noise(entry: ModelEntry, pack: Path, *, texts: CheckTexts, progress: Callable[[int], None]) -> KernelNoise:
    """Measure the noise of the engine's kernels on generated text: ours have none, and may not be available."""
    with engine_kernels(), opened(entry, pack, texts) as model:
        return measure_noise(model, texts.prompts, ends=texts.ends, positions=texts.noise_positions, progress=progress)


@contextmanager
def opened(entry: ModelEntry, pack: Path, texts: CheckTexts, *, needs: Collection[str] = ()) -> Iterator[LanguageModel]:
    """Open a model that is being exported or imported, on a graph with the capabilities `needs`."""
    request = ModelRequest(entry, pack, "check", texts.vocabulary_size, Budget(), needs=needs)
    with closing(find_runtime("onnx").open(request)) as model:
        yield model


def _rendered(template: ChatTemplate | None, prompt: str) -> str:
    messages: Sequence[Mapping[str, str]] = [{"role": "user", "content": prompt}]
    try:
        return template.render(messages) if template is not None else prompt
    except (InputError, ManifestError):
        return prompt


def check_lora(
    entry: ModelEntry, pack: Path, *, exact: Graph, reference: Reference, texts: CheckTexts
) -> Mapping[str, float]:
    """Check that the graph matches the base bit for bit without an adapter, and transformers with one."""
    text = texts.text.text[:_SHORT_LENGTH]
    if not np.array_equal(_logits(entry, pack, texts, needs=("lora",)), _logits(entry, pack, texts)):
        raise ExportError("without an adapter the lora graph is not bit-identical to the base graph")
    matrices = list(_trial(reference, exact))
    expected = reference.with_deltas(matrices).logits(
        text, visible=np.tri(len(text), dtype=np.bool_), positions=range(len(text))
    )
    with opened(replace(entry, graphs={"lora": exact}), pack, texts, needs=("lora",)) as model:
        assert isinstance(model, AdapterModel)
        model.add_adapter(_TRIAL, matrices)
        state = model.new_state(len(text))
        found = model.forward(text, state, rows="all", adapter=AdapterUse(name=_TRIAL, digest=_TRIAL)).logits
        error = float(np.abs(found - expected).max())
    limit = TOLERANCE * max(1.0, float(expected.std()))
    if not error <= limit:
        raise ExportError(
            f"the lora graph's results differ from transformers' (error {error:.2g}, allowed {limit:.2g})"
        )
    return {"lora_max_error": error}


def check_int8_cache(entry: ModelEntry, pack: Path, *, texts: CheckTexts) -> Mapping[str, float]:
    """Measure the 8-bit KV cache's loss against the base graph, on a text not used for calibration.

    Returns the root mean square error relative to the logits' deviation, and the share of rows with the same arg-max.
    Raises ExportError if the loss is larger than rounding could explain.
    """
    expected, found = _logits(entry, pack, texts), _logits(entry, pack, texts, needs=("kv:int8",))
    error = relative_error(found, expected)
    if not error <= LOOSE:
        raise ExportError(
            f"an 8-bit KV cache changes this model's logits by {error:.2g} of their deviation, allowed {LOOSE}: "
            f"leave kv8 out of --graphs"
        )
    return {"kv8_rms_error": error, "kv8_top1": agreement(found, expected)}


def _logits(entry: ModelEntry, pack: Path, texts: CheckTexts, *, needs: Sequence[str] = ()) -> FloatArray:
    """Return the text's logits, computed in two passes with the shipped graph that has `needs`."""
    text = texts.text.text
    with opened(entry, pack, texts, needs=needs) as model:
        state = model.new_state(len(text))
        half = len(text) // 2
        first = model.forward(text[:half], state, rows="all").logits.copy()
        return np.concatenate((first, model.forward(text[half:], state, rows="all").logits))


def _trial(reference: Reference, graph: Graph) -> Iterator[LowRank]:
    """Make a random adapter for all of the graph's modules, alternating between full and half rank."""
    draw = np.random.default_rng(0)
    for place, projection in enumerate(reference.projections(graph.lora_modules)):
        rank = max(1, graph.lora_rank // (1 + place % 2))
        down = draw.standard_normal((rank, projection.inputs), np.float32)
        down *= np.float32(_SHARE / (rank * projection.inputs) ** 0.5)
        up = draw.standard_normal((projection.outputs, rank), np.float32)
        yield LowRank(projection.layer, projection.module, down, up)
