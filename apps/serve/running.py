"""Runs answers in threads and passes their chunks to the event loop; keeps sessions whose prefix a next one can use."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from gc import collect
from time import monotonic, time

from edgedecode import BudgetExceeded, Chunk, Pair, Rule, Session, SessionOptions
from edgedecode.decoding.policy import NO_DRAFTER
from edgedecode.decoding.stats import Stats
from edgedecode.pack.manifest import MANIFEST_NAME
from edgedecode.sessions.answer import Answer, Samples
from edgedecode.text.thinking import Thoughts

from .echo import Echo, completed
from .models.idle_sessions import IdleSession, IdleSessions
from .models.places import CLOSING, Busy, Places
from .reasoning import thoughts_of
from .requests.asked import MOST_TOKENS, PLAIN, SWITCH, Asked
from .rounds import Piece, RoundLog
from .verify.states import VerifyStates

_ROWS = 16
"""Most answers that one pass serves: its rows of logits are planned, and more of them are hardly cheaper each."""


class Running:
    """An answer in a thread of its own, or several that a session decodes together: asynchronous iterators of chunks.

    rounds: report how they were made. thoughts: of each answer; None: nothing is set apart.
    """

    def __init__(
        self,
        session: Session,
        start: Callable[[Session], Answer | Echo],
        *,
        rounds: bool = False,
        thoughts: Sequence[Thoughts | None] = (None,),
    ) -> None:
        self._session, self._start, self._rounds, self._thoughts = session, start, rounds, thoughts
        self._loop = asyncio.get_running_loop()
        self._queues: list[asyncio.Queue[Piece | Exception | None]] = [asyncio.Queue() for _ in thoughts]
        self._stopping = threading.Event()
        self._refusal: Busy | None = None
        self._answer: Answer | Echo | None = None
        self._ended = set[int]()
        self._thread = threading.Thread(target=self._work, name="answer", daemon=True)
        self._done = asyncio.Event()
        self._thread.start()

    @property
    def count(self) -> int:
        """How many answers it gives."""
        return len(self._queues)

    def stats(self, number: int = 0) -> Stats:
        """Return an answer's statistics so far."""
        if isinstance(self._answer, Samples):
            return self._answer.every[number]
        stats: Stats = self._session.stats
        return stats

    async def pieces(self, number: int = 0) -> AsyncIterator[Piece]:
        """Yield an answer's chunks that were not yielded yet, with reports if asked for. Raises what it raised."""
        while number not in self._ended:
            found = await self._queues[number].get()
            if found is None:
                self._ended.add(number)
            elif isinstance(found, Exception):
                raise found
            else:
                yield found

    def halt(self, refusal: Busy | None = None) -> None:
        """Make the answer end after the current round or prefill chunk. refusal: what it then raises."""
        self._refusal = refusal
        self._stopping.set()
        if self._answer is not None:
            self._answer.stop()

    async def stop(self) -> None:
        """Stop the answer if it runs, and wait for its thread: one pass of the model."""
        self.halt(self._refusal)
        await self._done.wait()

    def _work(self) -> None:
        try:
            answer = self._answer = self._start(self._session)
            if self._stopping.is_set():  # `halt` came before there was an answer
                answer.stop()
            every = answer.every if isinstance(answer, Samples) else (answer.stats,)
            logs = [RoundLog(stats) if self._rounds else None for stats in every]
            running = {*range(self.count)}
            for chunk in answer:
                if chunk.finish_reason is not None:
                    running.discard(chunk.number)
                report = None if (log := logs[chunk.number]) is None else log.report(chunk)
                self._put(self._piece(chunk, report, every[chunk.number]), (chunk.number,))
            if self._stopping.is_set():
                answer.close()
            if self._refusal is not None:
                self._put(self._refusal, running)
        except Exception as error:
            self._put(self._refusal or error)
        finally:
            self._put(None)
            self._call(self._done.set)

    def _piece(self, chunk: Chunk, report: Mapping[str, object] | None, stats: Stats) -> Piece:
        """Return a chunk with the thought in it apart, whose tokens are counted."""
        if (thoughts := self._thoughts[chunk.number]) is None:
            return Piece(chunk, report)
        thinking = thoughts.thinking
        thought, text = thoughts.parted(chunk.text, ended=chunk.finish_reason is not None)
        if thinking or thought or thoughts.thinking:
            stats.thought_tokens += len(chunk.tokens)
        return Piece(replace(chunk, text=text), report, thought)

    def _put(self, item: Piece | Exception | None, numbers: Collection[int] | None = None) -> None:
        """Put an item into the queues of these answers; None: of all."""
        for number, queue in enumerate(self._queues):
            if numbers is None or number in numbers:
                self._call(queue.put_nowait, item)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the event loop. Once that is closed the server has stopped, and the answer ends too."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self.halt(self._refusal)


class Service:
    """A pair's sessions for concurrent requests.

    Sessions that have answered without a seed are kept: a request that begins with the same messages reuses their KV
    cache.
    """

    def __init__(self, pair: Pair, options: SessionOptions, places: Places) -> None:
        self.pair, self.options, self.places = pair, options, places
        manifest = pair.root / MANIFEST_NAME
        self.created = int(manifest.stat().st_mtime if manifest.is_file() else time())
        """Unix time of the pack."""
        self._idle, self.states = IdleSessions(), VerifyStates(pair)
        self._answers: set[Running] = set()

    @property
    def running(self) -> int:
        """Answers that run."""
        return len(self._answers)

    def together(self, asked: Asked) -> int:
        """Return how many answers to a prompt one session decodes at once: all, or one where that cannot be."""
        base, mode = self.options, asked.model.mode
        lossy = base.details.switch is not None or base.details.rule is Rule.RATIO
        alone = mode == SWITCH or (mode != PLAIN and lossy) or base.drafter not in (None, NO_DRAFTER) or base.draft_max
        alone = alone or asked.truncates or asked.echo or asked.max_tokens == 0 or not self.pair.target.card.tree
        return 1 if alone else max(1, asked.each)

    @asynccontextmanager
    async def answering(self, asked: Asked, *, number: int = 0) -> AsyncIterator[Running]:
        """Run the answer of a request, or those that are made together, from this number on.

        Raises Busy, and the errors of a session.
        """
        if asked.max_tokens is None:  # clients that give no limit expect the whole answer, however long it is
            asked = replace(asked, max_tokens=self.pair.manifest.generation.max_tokens or MOST_TOKENS)
        await self.places.take()
        count = self.together(asked)
        try:
            options = asked.session_options(self.options, number=number)
            if count > 1:
                details = replace(options.details, samples=min(count, _ROWS))
                options = replace(options, drafter=None, draft_max=None, details=details)
            session = await self._session(options, asked, number)
        except BaseException:
            self.places.leave()
            raise
        thoughts: list[Thoughts | None] = [None] * count
        if asked.chat and options.grammar is None and not asked.continues:
            thoughts = [thoughts_of(self.pair, options.details) for _ in range(count)]
        running = Running(session, partial(self._start, asked, number), rounds=asked.rounds, thoughts=thoughts)
        self._answers.add(running)
        self.places.running += 1
        if self.places.closing:
            running.halt(Busy(CLOSING))
        try:
            yield running
        finally:
            prompt = None if asked.chat else asked.prompt(number)
            await asyncio.shield(self._finish(running, IdleSession(options, session, asked.key, prompt)))

    def halt(self) -> None:
        """Stop the answers that run: the server closes."""
        self.states.halted = True
        for running in self._answers:
            running.halt(Busy(CLOSING))

    async def drop_session(self) -> bool:
        """Close the session that has been idle for longest, or a state for drafts. Return whether there was one."""
        session = self._idle.oldest()
        close = self.states.oldest() if session is None else session.close
        if close is None:
            return False
        self.places.opening += 1
        try:
            await asyncio.to_thread(close)
        finally:
            self.places.opening -= 1
            await self.places.announce()
        return True

    async def _finish(self, running: Running, ended: IdleSession) -> None:
        """Stop an answer, keep its session or close it, and free its place."""
        try:
            await running.stop()
            if (unwanted := self._idle.add(ended)) is not None:
                await asyncio.to_thread(unwanted.close)
        finally:
            self._answers.discard(running)
            self.places.running -= 1
            self.places.leave()
            await self.places.announce()

    def _start(self, asked: Asked, number: int, session: Session) -> Answer | Echo:
        most, top = asked.max_tokens, asked.top_logprobs
        if (count := self.together(asked)) > 1:
            prompt, raw = (asked.prompt(number), True) if asked.prompts else (asked.message, False)
            return session.samples(prompt, count, raw=raw, max_tokens=most, stop=asked.stop, top_logprobs=top)
        if asked.prompts:
            if not asked.chat and (asked.echo or asked.max_tokens == 0):
                return Echo(session, self.pair.tokenizer, asked, number=number)
            return completed(session, asked, asked.prompt(number))
        return session.stream(
            asked.message, max_tokens=most, stop=asked.stop, top_logprobs=top, expected=asked.expected
        )

    async def _session(self, options: SessionOptions, asked: Asked, number: int) -> Session:
        """Return a session that continues the request: an idle one with the longest prefix, or a new one.

        A new session that does not fit the budget takes the place of idle ones and of idle models, then waits for
        running ones to end.
        """
        places = self.places
        deadline, collected = monotonic() + places.patience, False
        if (kept := self._idle.take(options, asked, number)) is not None:
            return await self._ready(lambda: _reset(kept, asked)) if asked.chat else kept
        while True:
            ends = places.ends
            try:
                return await self._ready(lambda: self.pair.session(options, messages=asked.messages))
            except BudgetExceeded as error:
                refusal = error
            if places.closing:
                raise Busy(CLOSING)
            if await self.drop_session() or await places.find_room():
                continue
            idle, shared = not places.running and not places.opening, self.pair.budget.shared
            beside = shared is not None and shared.is_shared(self.pair.budget)
            if idle and not beside:
                if ends != places.ends and monotonic() < deadline:
                    continue  # what took the room has ended since
                if collected:
                    raise refusal
                await asyncio.to_thread(collect)  # grammars of closed sessions are leased until then
                collected = True
                continue
            if idle or monotonic() > deadline:  # idle: all models wait for each other's room
                raise Busy("the memory budget has no room for another answer: try again later")
            await places.wait_for_room()

    async def _ready(self, make: Callable[[], Session]) -> Session:
        """Return what `make` returns, from a thread. If the client leaves meanwhile, the session is closed again."""
        making = asyncio.ensure_future(asyncio.to_thread(make))
        self.places.opening += 1
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.to_thread((await making).close)
            raise
        finally:
            self.places.opening -= 1


def _reset(session: Session, asked: Asked) -> Session:
    try:
        session.reset(asked.messages)
    except BaseException:
        session.close()  # no other code has a reference
        raise
    return session
