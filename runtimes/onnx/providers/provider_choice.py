"""Finds execution providers by name among the installed entry points."""

from __future__ import annotations

from typing import cast

from edgedecode.engines.registry import PROVIDERS, installed
from edgedecode.errors import CapabilityError, RuntimeUnavailable

from .provider import Provider


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
