"""The bundled pack on a graphics processor: speculative text is that of its own plain decoding, within its noise."""

from collections.abc import Iterator

import numpy as np
import pytest

import edgedecode
from edgedecode import LoadOptions, Pair, SamplingOptions, SessionOptions
from edgedecode.engines.kernel_noise import measure_noise, rescore
from edgedecode.library.names import BUNDLED_PACK
from tests.contract.conftest import skip_without

POSITIONS = 40
PROMPTS = 2
OPTIONS = ({"drafter": "model", "draft_max": 4}, {"drafter": "tree", "draft_max": 8})


@pytest.fixture(scope="module")
def webgpu() -> Iterator[Pair]:
    skip_without("webgpu")
    with edgedecode.load(BUNDLED_PACK, runtime="onnx", options=LoadOptions(provider="webgpu")) as pair:
        yield pair


@pytest.fixture(scope="module")
def texts(bundled_pair: Pair, prompts: list[str]) -> list[list[int]]:
    """Return the tokens of some prompts as a session renders them."""
    found = []
    for prompt in prompts[:PROMPTS]:
        with bundled_pair.session(SessionOptions(sampling=SamplingOptions(), drafter="none")) as session:
            session.generate(prompt, max_tokens=1)
            found.append(session.tokens[: session.stats.prompt_tokens])
    return found


def test_text_is_plain_decoding_within_the_noise_of_the_device(
    webgpu: Pair, texts: list[list[int]], prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert webgpu.target.card.kernel_noise is None, "the manifest's was measured on the processor"
    ends = webgpu.manifest.generation.end_token_ids
    noise = measure_noise(webgpu.target, texts, ends=ends, positions=POSITIONS)
    positions = hits = accepted = 0
    largest = 0.0
    for number, options in enumerate(OPTIONS):
        full = SessionOptions(sampling=SamplingOptions(), **options)  # type: ignore[arg-type]
        with webgpu.session(full) as session:
            session.generate(prompts[number], max_tokens=16)
            score = rescore(webgpu.target, session.tokens, prompt_tokens=session.stats.prompt_tokens)
            accepted += session.stats.accepted
        positions, hits = positions + score.positions, hits + score.hits
        largest = max(largest, score.largest_gap)
    with capsys.disabled():
        print(
            f"\n{hits} of {positions} tokens arg-max; {accepted} accepted; largest gap {largest:.4f}, "
            f"noise {noise.percentile:.4f} (largest {noise.largest:.4f} of {noise.positions})"
        )
    assert accepted > positions / 5
    assert largest <= noise.largest
    assert hits >= positions - 1


def test_most_likely_tokens_are_those_of_the_processor(
    webgpu: Pair, bundled_pair: Pair, texts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both round activations to 8 bits, in other blocks."""
    rows: list[list[np.ndarray]] = []  # type: ignore[type-arg]
    for model in (webgpu.target, bundled_pair.target):
        found = []
        for text in texts:
            state = model.new_state(len(text), rows=len(text))
            found.append(model.forward(text, state, rows="all").logits.copy())
            state.close()
        rows.append(found)
    device, host = (np.concatenate(found) for found in rows)
    same = float(np.mean(device.argmax(axis=1) == host.argmax(axis=1)))
    error = np.abs(device - host).max()
    with capsys.disabled():
        print(f"\n{same:.4f} of {len(host)} arg-max as on the processor; largest difference {error:.3f}")
    assert same > 0.95
