"""What a peer is: another engine that answers prompts of token ids, plainly and speculatively.

`PEERS` names their factories, which are loaded in child processes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = ["PEERS", "PLAIN_MODE", "Answer", "Peer", "PeerFactory", "PeerOrder", "kind_of"]

PEERS: Mapping[str, str] = {
    "genai": f"{__package__}.genai_peer:GenaiPeer",
    "llama": f"{__package__}.llama_peer:LlamaPeer",
}
"""Where each `PeerFactory` is."""
PLAIN_MODE = "plain"


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer. `seconds`: the whole request, prompt reading included; `first_seconds`: until the prompt was
    read, when `first_tokens` of the answer were known."""

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float
    first_tokens: int

    @property
    def decode_tokens(self) -> int:
        """Tokens after the first, which comes with the prompt's pass; or after all that came with it."""
        return max(0, len(self.tokens) - max(1, self.first_tokens))

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.first_seconds


class Peer(Protocol):
    """An engine with its models loaded."""

    @property
    def setting(self) -> str:
        """What it is and runs with, in words: version, threads, precision of its weights."""
        ...

    @property
    def modes(self) -> Sequence[str]:
        """Its ways to decode: "plain", then a kind and its setting each, such as "draft 4" and "lookup 8"."""
        ...

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, read: Callable[[int], None]) -> Sequence[int]:
        """Return up to `count` tokens after the prompt, greedily; an end of sequence is the last one.

        Nothing is reused from earlier prompts. `read` is called once, when the prompt has been read, with the number
        of tokens known by then.
        """
        ...


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """Which peer is opened, on which pack, with our threads."""

    name: str
    root: str
    threads: int
    draft_threads: int
    kv_type: str
    """How our runtime keeps keys and values."""
    capacity: int
    ends: tuple[int, ...]
    """The ids that end a sequence."""


PeerFactory: TypeAlias = Callable[[PeerOrder], Peer]
"""Opens a peer. Raises RuntimeUnavailable, CapabilityError or ManifestError with the reason."""


def kind_of(mode: str) -> str:
    """Return a mode's kind: its first word."""
    return mode.partition(" ")[0]
