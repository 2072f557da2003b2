"""Measure how many threads are fastest for a model with our kernels, once per weights and processor, and cache it.

Decoding is bound by memory bandwidth; how many cores saturate it depends on the model and the processor. The number of
threads never changes a bit of the result, so a measurement disturbed by other processes only costs time.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, time

from edgedecode.cache import cache_folder, facts_key, keep_json, kept_json
from edgedecode.engines.hardware import cores, processor_facts
from edgedecode.typed_json import Positive
from edgedecode.user_notices import notice

FOLDER = "threads"
FORMAT = 2
WIDTHS = 1, 8
"""Rows of the passes that are timed as one: one row is bound by reading weights, drafts and prompts by computing."""
WARM_UP, SAMPLES, LEAST_SAMPLES = 2, 9, 3
SLOW_SECONDS = 2.0
"""Limit of the total measuring time: larger models get fewer samples, and a notice."""
BUSY_SECONDS = 300
"""Lifetime of a choice measured while other processes used some of the cores; the next model that opens measures."""
CLOSE = 1.04
"""Fewer threads are preferred if a pass takes at most this factor longer, as they leave cores to other programs."""


def kept_choice(facts: Sequence[str]) -> Path | None:
    """Return the cache file of the choice for a model with these facts; None if there is no cache folder."""
    folder = cache_folder(FOLDER)
    return folder and folder / f"{facts_key(FORMAT, *facts, cores(), *processor_facts())}.json"


def chosen_threads(run: Callable[[int], None], *, most: int, kept: Path | None) -> int:
    """Return how many threads, 1 to `most`, a pass should use: as cached at `kept`, else measured now.

    run: runs passes of `WIDTHS` with a given number of threads.
    """
    threads = kept_threads(kept)
    if 1 <= threads <= most:
        return threads
    ends = time() + BUSY_SECONDS if _busy_cores() + most >= cores() + 1 else None
    times = _measured(run, most=most)
    threads = fewest_fast(times)
    if kept is not None:
        seconds = {str(count): each for count, each in times.items()}
        keep_json(kept, {"threads": threads, "seconds": seconds, "ends": ends})
    return threads


def fewest_fast(seconds: dict[int, float]) -> int:
    """Return the smallest number of threads that is nearly as fast as the fastest."""
    best = min(seconds.values())
    return min(threads for threads, each in seconds.items() if each <= CLOSE * best)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A choice, and the time after which it is measured again."""

    threads: Positive
    ends: float | None = None


def kept_threads(kept: Path | None) -> int:
    """Return the cached choice; 0 if it is missing, damaged or expired."""
    try:
        found = None if kept is None else kept_json(kept, _Kept)
    except (OSError, ValueError):
        return 0
    return found.threads if found is not None and (found.ends is None or time() < found.ends) else 0


def _measured(run: Callable[[int], None], *, most: int) -> dict[int, float]:
    """Return the median seconds of `run` by number of threads: powers of two, and `most`; interleaved."""
    counts = sorted({most, *(1 << power for power in range(most.bit_length()))} & set(range(1, most + 1)))
    samples: dict[int, list[float]] = {count: [] for count in counts}
    wanted = SAMPLES
    while len(samples[most]) < WARM_UP + wanted:
        for count in counts:
            started = perf_counter()
            run(count)
            samples[count].append(perf_counter() - started)
        if (
            len(samples[most]) == WARM_UP
            and (spent := sum(each[-1] for each in samples.values())) * SAMPLES > SLOW_SECONDS
        ):
            wanted = max(LEAST_SAMPLES, int(SLOW_SECONDS / spent))
            notice("measuring once how many threads are fastest for this model on this machine")
    return {count: median(each[WARM_UP:]) for count, each in samples.items()}


def _busy_cores() -> float:
    """Return how many cores other processes used in the last minute; 0 if the system does not report it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
