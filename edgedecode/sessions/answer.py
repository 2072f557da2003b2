"""A running answer: an iterator of chunks that any thread may stop."""

from collections.abc import Generator, Iterator, Sequence
from types import GeneratorType
from typing import TypeVar, cast

from edgedecode.decoding.stats import Stats
from edgedecode.errors import CapabilityError, InputError
from edgedecode.fair_lock import FairLock, when_free
from edgedecode.sessions.chunks import Chunk, Completion, completion_of


class Answer(Iterator[Chunk]):
    """Yields the chunks of one answer, one round of the decode loop at a time.

    Each round holds the pair's lock, which is free between chunks. Once closed, the answer ends for every iterator.
    """

    def __init__(self, chunks: Generator[Chunk | None], *, stats: Stats, turn: FairLock, own: FairLock) -> None:
        """chunks: None where the lock may be released or the answer may stop, such as between two prefill passes.

        stats: updated by `chunks`. turn: the pair's lock. own: the session's lock.
        """
        self.stats = stats
        self._chunks = cast("GeneratorType[Chunk | None, None, None]", chunks)
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
        self._turn.run(self._chunks.close)

    def _advance(self) -> Chunk:
        while True:
            if self._stopped:
                self._chunks.close()
            if (chunk := next(self._chunks)) is not None:
                return chunk
            try:
                self._turn.pass_on()
            except BaseException:  # an interrupt of the wait
                self.close()
                raise

    def _check_outside(self) -> None:
        if self._chunks.gi_running and self._turn.held:
            raise CapabilityError("this answer is in the middle of a round in this thread: call again after the round")


class Samples(Answer):
    """The running answers to one prompt. A chunk's `number` tells which one it belongs to; each has its last chunk.

    every: the statistics of each.
    """

    def __init__(
        self, chunks: Generator[Chunk | None], every: Sequence[Stats], *, turn: FairLock, own: FairLock
    ) -> None:
        super().__init__(chunks, stats=every[0], turn=turn, own=own)
        self.every = tuple(every)

    def completions(self) -> list[Completion]:
        """Return the complete replies, in the order of their seeds."""
        chunks = list(self)
        return [
            completion_of((chunk for chunk in chunks if chunk.number == number), stats)
            for number, stats in enumerate(self.every)
        ]


_Answer = TypeVar("_Answer", bound=Answer)


class Running:
    """A session's running answer: it has one at a time, until it is closed.

    own: held while an answer is started or ended. Lock order: it comes before the pair's.
    """

    def __init__(self, turn: FairLock) -> None:
        self.own, self.closed, self.answer = FairLock(), False, cast("Answer | None", None)
        self._turn = turn

    @property
    def busy(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self.answer is not None and not self.answer.ended

    def run(self, chunks: Generator[Chunk | None], stats: Stats) -> Answer:
        """Make these chunks the running answer."""
        return self.start(Answer(chunks, stats=stats, turn=self._turn, own=self.own))

    def samples(self, chunks: Generator[Chunk | None], every: Sequence[Stats]) -> Samples:
        """Make these chunks of several answers the running one."""
        return self.start(Samples(chunks, every, turn=self._turn, own=self.own))

    def start(self, answer: _Answer) -> _Answer:
        self.answer = answer
        if self.closed:  # while the prompt was encoded
            answer.stop()
        return answer

    def end(self) -> None:
        """End the running answer, if any. Raises InputError if the session is closed."""
        if self.answer is not None:
            self.answer.end()
        self.answer = None
        self.check_open()

    def stop(self) -> None:
        """Make the running answer end after its pass."""
        if (answer := self.answer) is not None:
            answer.stop()

    def check_open(self) -> None:
        """Raise InputError if the session is closed."""
        if self.closed:
            raise InputError("this session is closed: open another with Pair.session")
