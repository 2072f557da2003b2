"""A target that runs on a server, while this device's model drafts: which server, and how to ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from edgedecode.errors import InputError
from edgedecode.pack.entries import DRAFT
from edgedecode.pack.manifest import Manifest
from edgedecode.text.tokenizer import Tokenizer

from .interface import TARGET_KINDS, Runtime

__all__ = ["TargetFactory", "TargetServer", "with_device_draft"]


@dataclass(frozen=True, slots=True)
class TargetServer:
    """url: scheme, host, port and path. kind: one of `TARGET_KINDS`. model: its name there; empty: the server's own.

    key_variable: the environment variable with the key; empty: none. offline: whether the device's model goes on alone
    where the server does not answer, which its answers are marked with. seconds: for a reply.
    """

    url: str
    kind: str = TARGET_KINDS[0]
    model: str = ""
    key_variable: str = ""
    offline: bool = False
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.kind not in TARGET_KINDS:
            raise InputError(f"there is no kind of server {self.kind!r}: give one of {', '.join(TARGET_KINDS)}")
        if not self.seconds > 0:
            raise InputError(f"{self.seconds:g} s are too few for a reply: give more than 0")


TargetFactory: TypeAlias = Callable[[TargetServer, Runtime, Tokenizer, frozenset[int]], Runtime]
"""Returns an engine that opens the target on the server, and the draft on the given one, with the device's tokenizer
and the ids that end an answer. The entry point "remote" of the group `edgedecode.targets` names it."""


def with_device_draft(manifest: Manifest) -> Manifest:
    """Return a pack's manifest with its target as the draft of a target that is elsewhere.

    A draft with a tokenizer of its own stays: its pack's target only tells the tokenizer of the server's model.
    """
    own, draft = manifest.models["target"], manifest.models.get(DRAFT)
    drafts = draft if draft is not None and draft.own_tokenizer else replace(own, trimmed=None)
    return replace(manifest, models={"target": own, DRAFT: drafts}, head=None, adapters={})
