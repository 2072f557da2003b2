"""The base class of an execution provider, and the checks that nothing falls back to another one silently.

A provider is a subclass in a file of its own, a row in the entry points of group `edgedecode.providers`, and an
optional extra of the same name that installs what it needs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, cast

from edgedecode.engines.interface import Device
from edgedecode.engines.registry import PROVIDERS, installed
from edgedecode.errors import CapabilityError, EdgeDecodeError, ManifestError, RuntimeUnavailable
from edgedecode.pack.manifest import Graph, ModelEntry

from ..onnx_engine import Untyped
from .kv_cache import NewCache, host_cache

__all__ = ["GraphFiles", "Provider", "assigned_nodes", "check_assignment"]

RECORD = {"session.record_ep_graph_assignment_info": "1"}
_MOST_NAMED = 3
"""Operators named in a refusal."""


@dataclass(frozen=True, slots=True)
class GraphFiles:
    """The files of a pack that a session reads, by their names there: the graph's, and the one with its weights."""

    graph: str
    weights: str


class Provider:
    """One execution provider. device: which of its devices; empty: the first.

    Subclasses set the class variables and override what differs from the defaults, which are those of a provider that
    is part of onnxruntime itself, runs any graph and reads its inputs and outputs in host memory.
    """

    name: ClassVar[str]
    """The name for `--provider`, and of the extra that installs it."""
    engine_name: ClassVar[str]
    """The name in onnxruntime, as `InferenceSession.get_providers` returns it."""
    description: ClassVar[str]
    own_kernels: ClassVar[bool] = False
    """Whether graphs may be opened with edgedecode's own operators, which run on the processor."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Needs of every graph it opens, as in `ModelRequest.needs`, such as "static"."""
    in_place: ClassVar[bool] = True
    """Whether passes read bound arrays of host memory; otherwise binding an input copies it to the device."""
    manifest_noise: ClassVar[bool] = False
    """Whether the kernel noise in a manifest, which was measured on the processor, is this provider's."""
    host_operators: ClassVar[frozenset[str]] = frozenset()
    """Operators that may stay on the processor: bookkeeping on a few integers, never a model's arithmetic."""

    def __init__(self, device: str = "") -> None:
        self.device = device
        if device not in {"", *self.device_names()}:
            names = ", ".join(f"{self.name}:{each}" for each in self.device_names()) or "one device only"
            raise CapabilityError(f"the provider {self.name} has no device {device!r}; it has: {names}")

    @property
    def full_name(self) -> str:
        """The name for `--provider`, with the device if one was chosen."""
        return f"{self.name}:{self.device}" if self.device else self.name

    @property
    def package_version(self) -> str:
        """The version of its own package; empty: it has none, or it is not installed."""
        return ""

    def device_names(self) -> Sequence[str]:
        """Return the devices that can be chosen explicitly; empty: there is nothing to choose."""
        return ()

    def problem(self) -> str:
        """Return why it cannot run here and what to do; empty: it can. Native code is tried in a child process only."""
        return ""

    def devices(self, *, runtime: str, version: str) -> Sequence[Device]:
        """Return its devices as `edgedecode devices` lists them; one that is unavailable if it cannot run here."""
        reason = self.problem()
        description = f"{self.description}, onnxruntime {version}"
        return [Device(runtime, self.name, description, available=not reason, reason=reason)]

    def refusal(self, entry: ModelEntry, graph: Graph) -> str:
        """Return why it cannot run a model's graph, and what to do; empty: no reason is known before it is opened."""
        return ""

    def files(self, entry: ModelEntry, graph: Graph) -> GraphFiles:
        """Return the files to open for a graph. Raises CapabilityError as `refusal` explains."""
        return GraphFiles(graph.file, entry.weights)

    def driver_nbytes(self) -> int:
        """Return the memory of its library and driver once a session has run: stays until the process ends."""
        return 0

    def most_rows(self) -> int:
        """Return how many rows a pass may have at most; 0: any number."""
        return 0

    def rewritten(self, path: Path) -> bytes | None:
        """Return a graph as this provider runs it; None: it runs the file as it is."""
        return None

    def new_caches(self, engine: Untyped, entry: ModelEntry) -> NewCache:
        """Return what makes the keys and values of the model's states."""
        return partial(host_cache, engine)

    def configure(self, options: Untyped, engine: Untyped) -> Mapping[str, object]:
        """Set the session options, and return further arguments of `InferenceSession`."""
        return {"providers": [self.engine_name], "enable_fallback": 0}

    def not_opened(self, path: Path, reason: str) -> EdgeDecodeError:
        """Return the error for a graph that the engine did not open. The processor opens every intact one."""
        return ManifestError(f"{path} cannot be opened ({reason}): export or import the pack again")

    def check(self, session: Untyped, *, subject: str) -> None:
        """Raise RuntimeUnavailable unless the session runs on this provider."""
        if (found := session.get_providers())[0] != self.engine_name:
            raise RuntimeUnavailable(f"{self.engine_name} did not start for {subject}; got {', '.join(found)}")


def assigned_nodes(session: Untyped) -> Mapping[str, Counter[str]]:
    """Return the number of nodes by operator for each provider, from a session that was opened with `RECORD`."""
    found: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        nodes = found.setdefault(str(part.ep_name), Counter())
        nodes.update(str(node.op_type) for node in part.get_nodes())
    return found


def check_assignment(session: Untyped, provider: Provider, *, allowed: Collection[str], subject: str) -> None:
    """Raise CapabilityError if a node of another operator than `allowed` runs on another provider."""
    others: Counter[str] = Counter()
    for name, nodes in assigned_nodes(session).items():
        if name != provider.engine_name:
            others.update({operator: count for operator, count in nodes.items() if operator not in allowed})
    if others:
        named = ", ".join(f"{count} {operator}" for operator, count in others.most_common(_MOST_NAMED))
        raise CapabilityError(
            f"{provider.full_name} does not run all of {subject}: {others.total()} nodes would fall back to the "
            f"processor ({named}); use --provider cpu"
        )


def find_provider(name: str) -> Provider:
    """Return the provider called `NAME` or `NAME:DEVICE`. Raises CapabilityError if it is unknown."""
    provider, _, device = name.partition(":")
    entries = installed(PROVIDERS)
    if provider not in entries:
        raise CapabilityError(f"ONNX Runtime has no provider {name!r} here; it has: {', '.join(entries) or 'none'}")
    try:
        kind = entries[provider].load()
    except (ImportError, AttributeError) as error:
        raise CapabilityError(
            f"the provider {provider!r} cannot be loaded ({error}): install its package again"
        ) from error
    return cast("Provider", kind(device))


def choose_provider(name: str) -> Provider:
    """Return a provider that runs here. Raises like `find_provider`, and RuntimeUnavailable with what to do."""
    provider = find_provider(name)
    if problem := provider.problem():
        raise RuntimeUnavailable(f"the provider {provider.full_name} cannot be used: {problem}; or use --provider cpu")
    return provider


def every_provider() -> list[Provider]:
    """Return all installed providers, the processor first."""
    names = sorted(installed(PROVIDERS), key=lambda name: (name != "cpu", name))
    return [find_provider(name) for name in names]
