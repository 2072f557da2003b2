"""Other greedy loops that ours is measured against: a bare one on the same graph, and onnxruntime-genai's.

Optional: a loop that cannot run here says why, in one line.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Protocol

from edgedecode import Pair, RuntimeUnavailable

from .settings import Settings

__all__ = ["BareLoop", "GenaiLoop", "GreedyLoop", "LoopRun", "open_loops"]


@dataclass(frozen=True, slots=True)
class LoopRun:
    """Tokens, and the seconds from the end of the prompt's pass to the last token: one pass fewer than tokens."""

    tokens: tuple[int, ...]
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(1, len(self.tokens) - 1)


class GreedyLoop(Protocol):
    """Continues a prompt greedily, past end-of-sequence tokens where it can."""

    name: str

    def generate(self, prompt: Sequence[int], count: int) -> LoopRun: ...


class BareLoop:
    """The runtime's own minimal loop over the pack's target graph: one IOBinding, shared KV, arg-max in numpy."""

    name = "bare IOBinding loop"

    def __init__(self, pair: Pair, *, threads: int | None, context: int) -> None:
        from edgedecode.runtimes.onnx.bare import Bare

        self._bare = Bare(pair.manifest.models["target"], pair.root, threads=threads, capacity=context)

    def generate(self, prompt: Sequence[int], count: int) -> LoopRun:
        tokens = [self._bare.read(prompt)]
        started = perf_counter()
        tokens += self._bare.decode(tokens[0], count - 1)
        return LoopRun(tuple(tokens), perf_counter() - started)


class GenaiLoop:
    """onnxruntime-genai's Generator on a folder that its builder made. Raises RuntimeUnavailable with the reason."""

    name = "onnxruntime-genai Generator"

    def __init__(self, folder: Path, *, threads: int | None, context: int) -> None:
        try:
            self._genai = import_module("onnxruntime_genai")
        except ImportError:
            raise RuntimeUnavailable("onnxruntime-genai is not installed: pip install onnxruntime-genai") from None
        try:
            config = self._genai.Config(str(folder))
            if threads is not None:
                options = {"intra_op_num_threads": threads}
                config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
            self._model = self._genai.Model(config)
        except Exception as error:  # the bindings raise RuntimeError, and their own kinds
            reason = " ".join(str(error).split())
            raise RuntimeUnavailable(f"onnxruntime-genai does not open {folder}: {reason[:200]}") from None
        self._context = context

    def generate(self, prompt: Sequence[int], count: int) -> LoopRun:
        parameters = self._genai.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, max_length=self._context)
        generator = self._genai.Generator(self._model, parameters)
        generator.append_tokens(list(prompt))
        tokens: list[int] = []
        started = perf_counter()
        while len(tokens) < count and not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
        return LoopRun(tuple(tokens), perf_counter() - started)


def open_loops(arguments: Namespace, pair: Pair, *, settings: Settings) -> tuple[list[GreedyLoop], list[str]]:
    """Return the loops that run here, and a line for each that does not."""
    loops: list[GreedyLoop] = []
    reasons: list[str] = []
    if pair.runtime == "onnx" and arguments.provider == "cpu":
        loops.append(BareLoop(pair, threads=arguments.threads, context=settings.context))
    else:
        reasons.append(f"{BareLoop.name}: exists for the onnx runtime on cpu only")
    if arguments.against_genai is None:
        reasons.append(f"{GenaiLoop.name}: give the folder that its builder made with --against-genai")
        return loops, reasons
    try:
        loops.append(GenaiLoop(Path(arguments.against_genai), threads=arguments.threads, context=settings.context))
    except RuntimeUnavailable as error:
        reasons.append(f"{GenaiLoop.name}: {error}")
    return loops, reasons
