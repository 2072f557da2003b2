"""Opens and times the greedy loops of other code that run on the same engine as the pair."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from time import perf_counter
from typing import Protocol, cast

from edgedecode import EdgeDecodeError, Pair
from edgedecode.pack.manifest import ModelEntry

from ..settings import Settings

__all__ = ["LOOPS", "GreedyLoop", "LoopRun", "open_loops", "time_loop"]

LOOPS: Mapping[str, str] = {
    "bare": f"{__package__}.onnx_loop:BareLoop",
    "genai": f"{__package__}.genai_loop:GenaiLoop",
    "llama-bare": f"{__package__}.llama_loops:LlamaBareLoop",
    "llama-cpp-python": f"{__package__}.llama_loops:HighLevelLoop",
}
"""Import path of each `LoopFactory`."""


@dataclass(frozen=True, slots=True)
class LoopRun:
    """The generated tokens, and the seconds from the end of prefill to the last token (one pass fewer than tokens)."""

    tokens: tuple[int, ...]
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(1, len(self.tokens) - 1)


class GreedyLoop(Protocol):
    """Continues a prompt greedily."""

    @property
    def name(self) -> str: ...

    @property
    def setting(self) -> str:
        """The loop's settings in words: context, threads, KV cache type."""
        ...

    def read(self, prompt: Sequence[int]) -> int:
        """Empty the KV cache, prefill the prompt in one pass and return the first token."""
        ...

    def decode(self, token: int, count: int) -> list[int]:
        """Return up to `count` tokens after `token`; fewer if the engine cannot continue past an end of sequence."""
        ...


class LoopFactory(Protocol):
    """Opens a loop. Raises RuntimeUnavailable or CapabilityError with the reason."""

    @property
    def runtime(self) -> str:
        """The name of edgedecode's runtime for the engine that the loop uses."""
        ...

    def __call__(
        self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int, kv_type: str
    ) -> GreedyLoop: ...


def time_loop(loop: GreedyLoop, prompt: Sequence[int], *, count: int) -> LoopRun:
    """Generate `count` tokens after the prompt and time them, without prefill."""
    first = loop.read(prompt)
    started = perf_counter()
    rest = loop.decode(first, count - 1)
    return LoopRun((first, *rest), perf_counter() - started)


def open_loops(arguments: Namespace, pair: Pair, *, settings: Settings) -> tuple[list[GreedyLoop], list[str]]:
    """Return the loops for this pair's engine, and a line with the reason for each that cannot run."""
    loops: list[GreedyLoop] = []
    reasons: list[str] = []
    for name, place in LOOPS.items():
        try:
            factory = cast(LoopFactory, resolve_name(place))
            if factory.runtime == pair.runtime:
                loops.append(
                    factory(
                        pair.manifest.located("target"),
                        pair.root,
                        threads=arguments.threads,
                        capacity=settings.context,
                        kv_type=pair.target.card.kv_type,
                    )
                )
        except ImportError as error:
            reasons.append(f"{name}: {error.name or error} is not installed")
        except OSError as error:
            reasons.append(f"{name}: {error.strerror or error}: {error.filename}")
        except EdgeDecodeError as error:
            reasons.append(f"{name}: {' '.join(str(error).split())}")
    return loops, reasons or ([] if loops else [f"there are no other loops for {pair.runtime}"])
