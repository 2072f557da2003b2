"""Runs answers in threads and passes their chunks to the event loop; keeps sessions whose prefix a next one can use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

from edgedecode import BudgetExceeded, EdgeDecodeError, Pair, Session, SessionOptions
from edgedecode.decoding.stats import Stats
from edgedecode.sessions.answer import Answer

from .asked import Asked
from .rounds import Piece, RoundLog

__all__ = ["Busy", "Running", "Service"]

_IDLE = 8
"""Sessions that are kept for their KV cache; the budget may hold fewer."""
_MOMENT = 0.5
"""Seconds after which a request tries again to open its session."""


class Busy(EdgeDecodeError):
    """The queue is full, or a request waited too long: HTTP 503."""


@dataclass(frozen=True, slots=True)
class Failed:
    """What ended an answer's thread with an error."""

    error: Exception


class Running:
    """An answer in a thread of its own: an asynchronous iterator of chunks. rounds: report how they were made."""

    def __init__(self, session: Session, start: Callable[[Session], Answer], *, rounds: bool = False) -> None:
        self._session, self._start, self._rounds = session, start, rounds
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece | Failed | None] = asyncio.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="answer", daemon=True)
        self._done = asyncio.Event()
        self._thread.start()

    @property
    def stats(self) -> Stats:
        """The answer's statistics so far."""
        stats: Stats = self._session.stats
        return stats

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield the chunks, with reports if they are asked for. Raises what the answer raised."""
        while (found := await self._queue.get()) is not None:
            if isinstance(found, Failed):
                raise found.error
            yield found

    async def stop(self) -> None:
        """Stop the answer if it runs, and wait for its thread: one pass of the model."""
        self._stopping.set()
        await self._done.wait()

    def _work(self) -> None:
        try:
            answer = self._start(self._session)
            log = RoundLog(answer.stats) if self._rounds else None
            for chunk in answer:
                self._put(Piece(chunk, None if log is None else log.report(chunk)))
                if self._stopping.is_set():
                    answer.close()
                    break
        except Exception as error:
            self._put(Failed(error))
        finally:
            self._put(None)
            self._loop.call_soon_threadsafe(self._done.set)

    def _put(self, item: Piece | Failed | None) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class Service:
    """A pair's sessions for concurrent requests.

    parallel: most answers at a time. waiting: most requests in the queue. patience: seconds that one waits. Sessions
    that have answered without a seed are kept: a request that begins with the same messages reuses their KV cache.
    """

    def __init__(self, pair: Pair, options: SessionOptions, *, parallel: int, waiting: int, patience: float) -> None:
        self.pair, self.options = pair, options
        self.parallel, self._waiting, self._patience = parallel, waiting, patience
        self._slots = asyncio.Semaphore(parallel)
        self._freed = asyncio.Condition()
        self._idle: list[tuple[SessionOptions, Session]] = []
        self.queued = self.running = 0
        self._opening = 0
        """Sessions that are being opened now."""
        self.closing = False

    @asynccontextmanager
    async def answering(self, asked: Asked, *, number: int = 0) -> AsyncIterator[Running]:
        """Run one answer of a request. Raises Busy, and the errors of a session."""
        if self.closing or self.queued >= self._waiting:
            raise Busy("the server is closing" if self.closing else "too many requests are waiting: try again later")
        self.queued += 1
        try:
            try:
                async with asyncio.timeout(self._patience):
                    await self._slots.acquire()
            except TimeoutError:
                raise Busy(f"no answer could begin within {self._patience:g} s: try again later") from None
            try:
                session = await self._session(asked.session_options(self.options, number=number), asked)
            except BaseException:
                self._slots.release()
                raise
        finally:
            self.queued -= 1
        self.running += 1
        running = Running(session, lambda session: _start(session, asked), rounds=asked.rounds)
        try:
            yield running
        finally:
            await asyncio.shield(self._finish(running, session, asked, number))

    async def close(self) -> None:
        """Refuse new answers, and wait until the running ones have ended."""
        self.closing = True
        async with self._freed:
            await self._freed.wait_for(lambda: not self.running)
        for _, session in self._idle:
            await asyncio.to_thread(session.close)
        self._idle.clear()

    async def _finish(self, running: Running, session: Session, asked: Asked, number: int) -> None:
        await running.stop()
        options = asked.session_options(self.options, number=number)
        if asked.chat and options.seed is None and len(self._idle) < _IDLE:
            self._idle.append((options, session))
        else:
            await asyncio.to_thread(session.close)
        self.running -= 1
        self._slots.release()
        async with self._freed:
            self._freed.notify_all()

    async def _session(self, options: SessionOptions, asked: Asked) -> Session:
        """Return a session that continues the request's messages: an idle one with the longest prefix, or a new one.

        A new session that does not fit the budget takes the place of idle ones, then waits for running ones to end.
        """
        deadline = monotonic() + self._patience
        if (kept := self._kept(options, asked)) is not None:
            return await self._ready(lambda: _reset(kept, asked))
        while True:
            self._opening += 1
            try:
                return await self._ready(lambda: self.pair.session(options, messages=asked.messages))
            except BudgetExceeded as error:
                refusal = error
            finally:
                self._opening -= 1
            if self._idle:
                await asyncio.to_thread(self._idle.pop(0)[1].close)
            elif not self.running and not self._opening:
                raise refusal
            elif monotonic() > deadline:
                raise Busy("the memory budget has no room for another answer: try again later")
            else:
                await self._wait_for_room()

    async def _ready(self, make: Callable[[], Session]) -> Session:
        """Return what `make` returns, from a thread. If the client leaves meanwhile, the session is closed again."""
        making = asyncio.ensure_future(asyncio.to_thread(make))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.to_thread((await making).close)
            raise

    async def _wait_for_room(self) -> None:
        """Wait until an answer ends, or a moment: a session that was being opened may have failed."""
        async with self._freed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), _MOMENT)

    def _kept(self, options: SessionOptions, asked: Asked) -> Session | None:
        """Take the idle session of these options that shares the most messages, at least one."""
        if not asked.chat or options.seed is not None:
            return None
        same = [each for each in self._idle if replace(each[0], seed=None) == options]
        best = max(same, key=lambda each: _shared(each[1], asked), default=None)
        if best is None or not _shared(best[1], asked):
            return None
        self._idle.remove(best)
        return best[1]


def _reset(session: Session, asked: Asked) -> Session:
    session.reset(asked.messages)
    return session


def _start(session: Session, asked: Asked) -> Answer:
    if not asked.chat:
        return session.complete(
            asked.text, max_tokens=asked.max_tokens, stop=asked.stop, top_logprobs=asked.top_logprobs
        )
    return session.stream(asked.message, max_tokens=asked.max_tokens, stop=asked.stop, top_logprobs=asked.top_logprobs)


def _shared(session: Session, asked: Asked) -> int:
    """Return how many messages a session and a request have in common from the start."""
    wanted = (*asked.messages, asked.message)
    pairs = zip(session.messages, wanted, strict=False)
    return next(
        (number for number, (one, other) in enumerate(pairs) if one != other), min(len(session.messages), len(wanted))
    )
