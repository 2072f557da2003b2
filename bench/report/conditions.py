"""The conditions printed with every figure: machine, pack, prompts, versions, date."""

import hashlib
import os
from argparse import Namespace
from dataclasses import dataclass
from datetime import UTC, datetime

from edgedecode import Pair
from edgedecode.apps.machine import Machine, versions
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.pack.weights_text import quantization

from ..settings import Settings


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions as text, in the order of printing."""

    device: str
    threads: str
    pack: str
    quantization: str
    prompts: str
    decoding: str
    scheduler: str
    repetitions: str
    versions: str
    date: str
    load: str

    @classmethod
    def of(cls, pair: Pair, settings: Settings, *, arguments: Namespace, warm_up: int = 0) -> "Conditions":
        """Collect the conditions. warm_up: number of prompts that the scheduler answers before the measurement."""
        machine = Machine.here()
        source = arguments.prompts or "bundled, held out"
        digest = hashlib.sha256((pair.root / MANIFEST_NAME).read_bytes()).hexdigest()[:12]
        draft_place = "" if arguments.draft_on is None else f", draft on {arguments.draft_on}"
        numbers = ", ".join(f"{name} {number}" for name, number in versions(pair.runtime).items())
        prompts = f"{len(settings.prompts)} of {len(settings.families)} families, {source}"
        return cls(
            device=machine.line,
            threads=_threads(pair, asked=arguments.threads),
            pack=f"{pair.manifest.name}, digest {digest}, "
            f"{pair.runtime} on {arguments.provider}{draft_place}{_kv_type(pair)}",
            quantization="; ".join(
                f"{role} {entry.parameters / 1e6:.1f}M, {quantization(entry)}"
                for role, entry in pair.manifest.models.items()
            ),
            prompts="questions for facts of a text, bundled" if arguments.structured else prompts,
            decoding=f"{_sampling(settings)}, at most {settings.max_tokens} tokens, {_arms(settings)}",
            scheduler=f"has answered {warm_up} other prompts, and starts each request with the acceptance rates learnt "
            "there, in a session of its own, which drafts from no other answer",
            repetitions=f"{settings.repetitions}, interleaved, medians{_warning(settings)}",
            versions=f"{numbers}, Python {machine.python}",
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            load=_load(),
        )

    def line(self) -> str:
        """Return the conditions that every table must show, in one line."""
        return " | ".join(
            (self.device, f"threads: {self.threads}", self.pack, self.decoding, self.repetitions, self.date)
        )


def _kv_type(pair: Pair) -> str:
    """Return the target's KV cache type, unless it is float32."""
    kv_type = pair.target.card.kv_type
    return "" if kv_type == "float32" else f", {kv_type} KV cache (lossy)"


def _threads(pair: Pair, *, asked: int | None) -> str:
    """Return the threads and kernels in use; if the engine does not report its threads, the number asked for."""
    used = {"target": pair.target.card.threads, "draft": pair.draft and pair.draft.card.threads}
    reported = ", ".join(f"{role} {threads}" for role, threads in used.items() if threads is not None)
    kernels = f", {pair.target.card.kernels} kernels" if pair.target.card.kernels else ""
    return (reported or ("the runtime's choice" if asked is None else str(asked))) + kernels


def _sampling(settings: Settings) -> str:
    sampling = settings.sampling
    words = "greedy" if sampling.greedy else ""
    words = words or f"temperature {sampling.temperature:g}, top-p {sampling.top_p:g}, seed {settings.seed}"
    return words if settings.adapter is None else "{}, adapter {} times {:g}".format(words, *settings.adapter)


def _arms(settings: Settings) -> str:
    if not settings.fixed:
        return "scheduled"
    return f"scheduled and draft lengths {', '.join(map(str, settings.lengths))}"


def _warning(settings: Settings) -> str:
    return "" if settings.repetitions >= 9 else " (fewer than 9: only a rough measurement)"


def _load() -> str:
    if not hasattr(os, "getloadavg"):
        return "not available on this system"
    return f"{os.getloadavg()[0]:.2f} processes on average in the last minute"
