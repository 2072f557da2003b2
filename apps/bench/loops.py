"""Other greedy loops that ours is measured against, found by entry point; one that cannot run here says why.

Group `edgedecode.loops`: callables `(entry, folder, *, threads, capacity)` that return a `GreedyLoop` or raise
RuntimeUnavailable. They live with the engines: this ring imports none.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol, cast

from edgedecode import EdgeDecodeError, Pair
from edgedecode.manifest import ModelEntry
from edgedecode.registry import installed

from .settings import Settings

__all__ = ["LOOPS", "GreedyLoop", "LoopRun", "open_loops", "time_loop"]

LOOPS = "edgedecode.loops"
BARE = "bare"
GENAI = "genai"


@dataclass(frozen=True, slots=True)
class LoopRun:
    """Tokens, and the seconds from the prompt's pass to the last token: one pass fewer than tokens."""

    tokens: tuple[int, ...]
    seconds: float

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(1, len(self.tokens) - 1)


class GreedyLoop(Protocol):
    """Continues a prompt greedily."""

    @property
    def name(self) -> str: ...

    def read(self, prompt: Sequence[int]) -> int:
        """Start over: read the prompt in one pass and return the first token."""
        ...

    def decode(self, token: int, count: int) -> list[int]:
        """Return up to `count` tokens after `token`; fewer where the engine cannot go past an end of sequence."""
        ...


class LoopFactory(Protocol):
    """What the entry points name. Raises RuntimeUnavailable with the reason."""

    def __call__(self, entry: ModelEntry, folder: Path, *, threads: int | None, capacity: int) -> GreedyLoop: ...


def time_loop(loop: GreedyLoop, prompt: Sequence[int], *, count: int) -> LoopRun:
    """Let a loop generate `count` tokens after the prompt; the prompt's own pass is not timed."""
    first = loop.read(prompt)
    started = perf_counter()
    rest = loop.decode(first, count - 1)
    return LoopRun((first, *rest), perf_counter() - started)


def open_loops(arguments: Namespace, pair: Pair, *, settings: Settings) -> tuple[list[GreedyLoop], list[str]]:
    """Return the loops that run here, and a line for each that does not."""
    folders = {BARE: pair.root, GENAI: arguments.against_genai and Path(arguments.against_genai)}
    loops: list[GreedyLoop] = []
    reasons: list[str] = []
    for name, entry in installed(LOOPS).items():
        folder = folders.get(name)
        if folder is None:
            reasons.append(f"{name}: no folder given (--against-genai FOLDER, made by its builder on the same weights)")
            continue
        if "float32" not in pair.target.card.kv_types:
            reasons.append(f"{name}: it keeps keys and values in float32, which this run does not")
            continue
        try:
            factory = cast(LoopFactory, entry.load())
            target = pair.manifest.located("target")
            loops.append(factory(target, folder, threads=arguments.threads, capacity=settings.context))
        except ImportError as error:
            reasons.append(f"{name}: {error.name or error} is not installed")
        except OSError as error:
            reasons.append(f"{name}: {error.strerror or error}: {error.filename or folder}")
        except EdgeDecodeError as error:
            reasons.append(f"{name}: {' '.join(str(error).split())}")
    return loops, reasons or ([] if loops else [f"no loops are registered under {LOOPS}"])
