"""A peer: another engine that answers prompts of token ids, by plain and speculative decoding.

It runs in a child process, so that its memory, threads and crashes stay separate, and answers one prompt at a time.
"""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any, Protocol

from edgedecode import EdgeDecodeError, RuntimeUnavailable
from edgedecode.engines.child import signal_name
from edgedecode.errors import cause

PEERS = {"genai": f"{__package__}.genai_peer:GenaiPeer", "llama": f"{__package__}.llama_peer:LlamaPeer"}
"""Import path of each `Peer`, which is imported only in a child process."""
PLAIN_MODE = "plain"
OPEN_SECONDS = 600.0
ANSWER_SECONDS = 300.0


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
    """An engine with its models loaded. Opening it raises an error with the reason, of any type.

    setting: the engine and its settings in words: version, threads, precision of its weights. modes: the decoding
    modes: "plain", then a kind and its setting each, such as "draft 4" and "lookup 8".
    """

    setting: str
    modes: tuple[str, ...]

    def __init__(self, order: PeerOrder) -> None: ...

    def answer(self, mode: str, prompt: Sequence[int], *, count: int) -> Answer:
        """Return up to `count` greedy tokens after the prompt, the last one at an end of sequence.

        Nothing is reused from earlier prompts.
        """
        ...


def kind_of(mode: str) -> str:
    """Return a mode's kind: its first word."""
    return mode.partition(" ")[0]


class PeerProcess:
    """A running peer. Raises RuntimeUnavailable with the reason if it refuses, dies or does not answer in time.

    path: import path of the `Peer`.
    """

    def __init__(self, order: PeerOrder, path: str) -> None:
        self.name = order.name
        self._pipe, theirs = get_context("spawn").Pipe()
        self._child = get_context("spawn").Process(target=_serve, args=(theirs, path, order), daemon=True)
        self._child.start()
        theirs.close()
        self.setting: str
        self.modes: tuple[str, ...]
        try:
            self.setting, self.modes = self._reply(OPEN_SECONDS)
        except BaseException:
            self.close()
            raise

    def answer(self, mode: str, prompt: Sequence[int], *, count: int, seconds: float = ANSWER_SECONDS) -> Answer:
        """Return the peer's greedy answer to a prompt of token ids, at most `count` tokens, within `seconds`."""
        try:
            self._pipe.send((mode, prompt, count))
        except OSError:
            raise RuntimeUnavailable(self._death()) from None
        answer: Answer = self._reply(seconds)
        return answer

    def close(self) -> None:
        """End the child process; kill it if it does not end within 5 seconds. Idempotent."""
        self._pipe.close()
        self._child.join(5)
        self._child.kill()
        self._child.join()

    def _reply(self, seconds: float) -> Any:  # noqa: ANN401  (what `_serve` sends)
        try:
            if not self._pipe.poll(seconds):
                self._child.kill()
                raise RuntimeUnavailable(f"it did not answer within {seconds:g} s")
            reply = self._pipe.recv()
        except (EOFError, OSError):
            raise RuntimeUnavailable(self._death()) from None
        if isinstance(reply, str):
            raise RuntimeUnavailable(reply)
        return reply

    def _death(self) -> str:
        self._child.join()
        code = self._child.exitcode or 0
        signal = signal_name(code)
        return f"its native code died with {signal}" if signal else f"its process ended with code {code}"


def _serve(pipe: Connection, path: str, order: PeerOrder) -> None:
    """Run in the child process: open the peer and answer until the parent closes the pipe; send an error's reason."""
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # native code prints to both
        os.dup2(silent, stream)
    warnings.simplefilter("ignore")
    os.environ["GGML_NO_BACKTRACE"] = "1"
    try:
        peer: Peer = resolve_name(path)(order)
        pipe.send((peer.setting, peer.modes))
        while True:
            mode, prompt, count = pipe.recv()
            pipe.send(peer.answer(mode, prompt, count=count))
    except EOFError:
        return
    except EdgeDecodeError as error:
        reason = cause(error)
    except ImportError as error:
        reason = f"{error.name or error} is not installed: pip install 'edgedecode[export]'"
    except Exception as error:  # a peer may raise anything, and must not stop the measurement of the others
        reason = f"{type(error).__name__}: {cause(error)}"
    pipe.send(reason)
