"""Execution providers, chosen by name. A provider that is not installed is an error: there is no silent fallback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedecode.errors import CapabilityError

__all__ = ["PROVIDERS", "Provider", "choose_provider"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider: our name, the engine's name, and a description for users."""

    name: str
    engine_name: str
    description: str
    own_kernels: bool = False
    """Whether graphs may be opened with our operators."""


PROVIDERS = (
    Provider(
        name="cpu",
        engine_name="CPUExecutionProvider",
        description="ONNX Runtime on the processor",
        own_kernels=True,
    ),
)


def choose_provider(name: str, *, installed: Sequence[str]) -> Provider:
    """Return the provider called `name`. Raises CapabilityError listing the installed ones."""
    usable = {provider.name: provider for provider in PROVIDERS if provider.engine_name in installed}
    if name not in usable:
        known = ", ".join(usable) or "none"
        raise CapabilityError(f"ONNX Runtime has no provider {name!r} here; it has: {known}")
    return usable[name]
