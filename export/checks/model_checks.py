"""Runs a freshly written model through the public runtime: parity with the reference, and the kernels' noise."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgedecode.decoding.model import LanguageModel
from edgedecode.engines.interface import ModelRequest
from edgedecode.engines.kernel_noise import POSITIONS, KernelNoise, measure_noise
from edgedecode.engines.registry import find_runtime
from edgedecode.errors import InputError, ManifestError
from edgedecode.memory import Budget
from edgedecode.pack.manifest import ModelEntry
from edgedecode.text.chat_template import ChatTemplate
from edgedecode.text.tokenizer import Tokenizer

from .parity import NODES, ParityText, check_exact, check_kernels, measure_loss, reference_rows
from .reference import Reference

__all__ = ["CheckTexts", "check_noise", "check_parity", "noise_of", "opened", "with_noise"]

_LENGTH = 48
_KERNELS = "EDGEDECODE_KERNELS"
_NARROW = 20
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
    """What a model is checked on, in its own ids."""

    text: ParityText
    prompts: tuple[tuple[int, ...], ...]
    vocabulary_size: int
    ends: Collection[int]
    noise_positions: int = POSITIONS

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, *, template: ChatTemplate | None, ends: Collection[int], context: int
    ) -> CheckTexts:
        """Encode the fixed texts; prompts go through the chat template where there is one that takes them."""
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

    Raises ExportError when that graph differs by more than summation order, or the shipped one by more than rounding of
    activations could. What quantization loses against the original weights is measured, not judged.
    """
    if entry.window > _NARROW:  # the wiring is what is checked, and a short text must reach beyond the window
        entry, reference = replace(entry, window=_NARROW), reference.narrowed(_NARROW)
    expected = reference_rows(reference, texts.text)
    graph = replace(entry.graphs["base"], file=exact)
    exactly = replace(entry, graphs={"base": graph})
    with engine_kernels(), opened(exactly, pack, texts) as model:
        numbers = {"tokens": float(len(expected)), "deviation": float(expected.std())}
        numbers |= check_exact(model, texts.text, expected)
    with opened(exactly, pack, texts) as model:
        if model.card.kernels:  # our attention, where the engine's was just checked
            ours = check_exact(model, texts.text, expected)
            numbers |= {name: max(error, numbers[name]) for name, error in ours.items()}
    if min(entry.bits, entry.head_bits) < 16:
        with opened(entry, pack, texts) as model:
            numbers |= check_kernels(model, texts.text, expected)
        length = len(texts.text.text)
        original = reference_rows(reference.of_originals(), texts.text)
        numbers |= measure_loss(expected[:length], original[:length])
    return numbers


def with_noise(entry: ModelEntry, noise: KernelNoise) -> ModelEntry:
    """Return the entry with what was measured of its kernels."""
    measured = {"noise_largest": noise.largest, "noise_positions": float(noise.positions)}
    return replace(entry, kernel_noise=noise.percentile, parity={**entry.parity, **measured})


def check_noise(entry: ModelEntry, pack: Path, *, texts: CheckTexts, progress: Callable[[int], None]) -> KernelNoise:
    """Measure the noise of the engine's kernels on text of the model's own: ours have none, and may not be there."""
    with engine_kernels(), opened(entry, pack, texts) as model:
        return noise_of(model, texts, progress=progress)


def noise_of(model: LanguageModel, texts: CheckTexts, *, progress: Callable[[int], None]) -> KernelNoise:
    """Measure the noise of an open model, which must be able to drop rows."""
    return measure_noise(model, texts.prompts, ends=texts.ends, positions=texts.noise_positions, progress=progress)


@contextmanager
def engine_kernels() -> Iterator[None]:
    """Open models with the engine's own kernels."""
    before = os.environ.get(_KERNELS)
    os.environ[_KERNELS] = "engine"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_KERNELS]
        else:
            os.environ[_KERNELS] = before


@contextmanager
def opened(
    entry: ModelEntry, pack: Path, texts: CheckTexts, *, needs: Collection[str] = (), runtime: str = "onnx"
) -> Iterator[LanguageModel]:
    """Open a model that is being exported or imported, on the graph that offers `needs`."""
    model = find_runtime(runtime).open(ModelRequest(entry, pack, "check", texts.vocabulary_size, Budget(), needs=needs))
    try:
        yield model
    finally:
        model.close()


def _rendered(template: ChatTemplate | None, prompt: str) -> str:
    messages: Sequence[Mapping[str, str]] = [{"role": "user", "content": prompt}]
    try:
        return template.render(messages) if template is not None else prompt
    except (InputError, ManifestError):
        return prompt
