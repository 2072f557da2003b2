"""An answer that is being generated: an iterator of chunks that any thread may stop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import cast

from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError
from edgedecode.sessions.chunks import Chunk
from edgedecode.turns import FairLock, when_free

__all__ = ["Answer"]


class Answer(Iterator[Chunk]):
    """Yields the chunks of one answer, a round of the decode loop at a time, each with the pair's lock held.

    The lock is free while the caller has a chunk. An answer that was closed just ends, whoever iterates over it.
    """

    def __init__(
        self,
        chunks: Callable[[Callable[[], None]], Generator[Chunk]],
        *,
        stats: Stats,
        turn: FairLock,
        own: FairLock,
    ) -> None:
        """chunks: makes the chunks, and calls the given function at each point where it may yield the lock or stop.

        stats: what `chunks` counts in. turn: the pair's lock. own: the session's.
        """
        self.stats = stats
        self._chunks = cast("GeneratorType[Chunk, None, None]", chunks(self._pause))
        self._turn, self._own = turn, own
        self._stopped = False

    def __next__(self) -> Chunk:
        self._check_outside()
        return self._turn.run(self._advance)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self._chunks.gi_frame is None

    def close(self) -> None:
        """Stop the answer, from any thread, and wait until it has ended.

        From a finalizer, a signal handler or a drafter in the middle of a round of this very thread it only says so:
        the answer ends with that round.
        """
        self.stop()
        when_free(lambda: self._own.run(self.end))

    def stop(self) -> None:
        """Let it go no further than to the end of a round, or of a piece of its prompt."""
        self._stopped = True

    def end(self) -> None:
        """Stop it and wait. Raises CapabilityError in the middle of a round of this thread."""
        self.stop()
        self._check_outside()
        self._turn.run(self._finish)

    def _advance(self) -> Chunk:
        if self._stopped or self._chunks.gi_running:
            self._finish()
        try:
            return next(self._chunks)
        except GeneratorExit:  # from `_pause`
            raise StopIteration from None

    def _finish(self) -> None:
        while self._chunks.gi_running:  # in another thread, which waits for its turn between two pieces of the prompt
            self._turn.pass_on()
        if self._stopped:
            self._chunks.close()

    def _pause(self) -> None:
        self._turn.pass_on()
        if self._stopped:
            raise GeneratorExit

    def _check_outside(self) -> None:
        if self._chunks.gi_running and self._turn.held:
            raise CapabilityError("this answer is asked for in the middle of a round of its own thread: ask after it")
