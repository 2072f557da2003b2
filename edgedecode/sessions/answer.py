"""A running answer: an iterator of chunks that any thread may stop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import GeneratorType
from typing import cast

from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError
from edgedecode.sessions.chunks import Chunk
from edgedecode.turns import FairLock, when_free


class Answer(Iterator[Chunk]):
    """Yields the chunks of one answer, one round of the decode loop at a time.

    Each round holds the pair's lock, which is free between chunks. Once closed, the answer ends for every iterator.
    """

    def __init__(
        self,
        chunks: Callable[[Callable[[], None]], Generator[Chunk]],
        *,
        stats: Stats,
        turn: FairLock,
        own: FairLock,
    ) -> None:
        """chunks: yields the chunks, and calls its argument at each point where it may release the lock or stop.

        stats: updated by `chunks`. turn: the pair's lock. own: the session's lock.
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
        """Whether no more chunks will come."""
        return self._chunks.gi_frame is None

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop, before or after its end."""
        return self._stopped

    def close(self) -> None:
        """Stop the answer, from any thread, and wait until it has ended.

        Called within a round of the same thread (from a finalizer, a signal handler or a drafter) it does not wait: the
        answer ends with that round.
        """
        self.stop()
        when_free(lambda: self._own.run(self.end))

    def stop(self) -> None:
        """Make the answer end after the current round or prefill chunk."""
        self._stopped = True

    def end(self) -> None:
        """Stop the answer and wait. Raises CapabilityError within a round of this thread."""
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
        while self._chunks.gi_running:  # in another thread, which waits for the lock between two prefill chunks
            self._turn.pass_on()
        if self._stopped:
            self._chunks.close()

    def _pause(self) -> None:
        self._turn.pass_on()
        if self._stopped:
            raise GeneratorExit

    def _check_outside(self) -> None:
        if self._chunks.gi_running and self._turn.held:
            raise CapabilityError("this answer is in the middle of a round in this thread: call again after the round")
