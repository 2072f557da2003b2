"""What the tests of adapters share: the engines, prompts and options."""

from edgedecode import SamplingOptions, SessionOptions
from tests.toys import session_options

ENGINES = {"onnx": "onnxruntime", "llama": "llama_cpp"}
GREEDY, WARM = SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.95)
HEADER = (1, 307, 201)
"""The bundled template's header of the assistant's turn."""
ADAPTERS = ("ordinary", "activated", "another")
PROMPTS = ("Tell me about a boat.", "Who is its captain?", "Tell me more.", "And the harbor?")


def options(adapter: str | None, *, drafter: str | None = "none", sampling: SamplingOptions = GREEDY) -> SessionOptions:
    return session_options(adapter=adapter, drafter=drafter, sampling=sampling, seed=5, ignore_eos=True)
