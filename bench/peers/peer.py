"""The interface of a peer: another engine that answers prompts of token ids, by plain and speculative decoding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

PEERS: Mapping[str, str] = {
    "genai": f"{__package__}.genai_peer:GenaiPeer",
    "llama": f"{__package__}.llama_peer:LlamaPeer",
}
"""Import path of each `PeerFactory`, which is imported only in a child process."""
PLAIN_MODE = "plain"


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy answer. `seconds`: the full request, with prefill; `first_seconds`: until the end of prefill, when
    `first_tokens` of the answer were known."""

    tokens: tuple[int, ...]
    seconds: float
    first_seconds: float
    first_tokens: int

    @property
    def decode_tokens(self) -> int:
        """Tokens generated after prefill; prefill yields the first token, or `first_tokens` if that is more."""
        return max(0, len(self.tokens) - max(1, self.first_tokens))

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.first_seconds


class Peer(Protocol):
    """An engine with its models loaded."""

    @property
    def setting(self) -> str:
        """The engine and its settings in words: version, threads, precision of its weights."""
        ...

    @property
    def modes(self) -> Sequence[str]:
        """The decoding modes: "plain", then a kind and its setting each, such as "draft 4" and "lookup 8"."""
        ...

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, read: Callable[[int], None]) -> Sequence[int]:
        """Return up to `count` greedy tokens after the prompt, the last one at an end of sequence.

        Nothing is reused from earlier prompts. `read` is called once, at the end of prefill, with the number of tokens
        known by then.
        """
        ...


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """The peer to open, its pack and its settings."""

    name: str
    root: str
    threads: int
    draft_threads: int
    kv_type: str
    """KV cache type of our runtime."""
    capacity: int
    ends: tuple[int, ...]
    """The ids that end a sequence."""


PeerFactory: TypeAlias = Callable[[PeerOrder], Peer]
"""Opens a peer. Raises RuntimeUnavailable, CapabilityError or ManifestError with the reason."""


def kind_of(mode: str) -> str:
    """Return a mode's kind: its first word."""
    return mode.partition(" ")[0]
