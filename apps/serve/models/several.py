"""Several models of a server, loaded when a request names them, within one budget."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from gc import collect
from math import inf
from time import monotonic, time
from typing import Protocol

from edgedecode import BudgetExceeded, Pair, SessionOptions
from edgedecode.library.names import without_hub
from edgedecode.memory.budget import Budget, SharedBudget
from edgedecode.memory.process_memory import release_pages
from edgedecode.user_notices import show_work_too

from ..offered import Listed, adapter_names, model_names, modes
from ..requests.asked import ModelName
from ..running import Service
from .one import LATEST, Loaded, UnknownModel, end_answers
from .places import CLOSING, Busy, Places
from .progress import Progress

_MOST_NAMES = 256
"""Of clients, whose meaning is kept."""


class Shelf(Protocol):
    """The models that a server may load."""

    def listed(self) -> list[Listed]: ...
    def open(self, name: str, budget: SharedBudget) -> tuple[Pair, SessionOptions]:
        """Load a model. Raises EdgeDecodeError."""
        ...

    def unknown(self, name: str) -> str:
        """Return the message about a name that none of the models has."""
        ...

    @property
    def is_library(self) -> bool: ...
    def changed(self) -> None: ...


def _collect() -> None:
    """Free what closed models left, so that what the process holds without them is measured."""
    collect()
    release_pages()


class SeveralModels:
    """Models of a shelf. One that does not fit beside the others takes the place of those idle for longest; while all
    are busy, the one loaded first takes no new requests until it has left.
    """

    def __init__(self, shelf: Shelf, shared: SharedBudget, places: Places) -> None:
        self.places, self._shelf, self._shared = places, shelf, shared
        self.budget = shared.own
        self._models: dict[str, Loaded] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Progress] = {}
        """Of those."""
        self._turn = asyncio.Lock()
        """One model is loaded at a time, in the order in which they were asked for."""
        self._ends: set[asyncio.Task[None]] = set()
        """Models that are being closed."""
        self._ended = False
        """Whether a model was closed whose objects, which refer to each other, may still be there."""
        self._found: dict[str, ModelName] = {}
        """What names meant that clients gave."""
        places.find_room = self._find_room

    @property
    def serves_library(self) -> bool:
        return self._shelf.is_library

    @property
    def budgets(self) -> Sequence[Budget]:
        return self._shared.parts

    @property
    def loaded(self) -> Sequence[Loaded]:
        return [*self._models.values()]

    async def names(self) -> list[str]:
        return [each.name for each in await self.listed()]

    async def listed(self) -> list[Listed]:
        found = list[Listed]()
        for each in await asyncio.to_thread(self._shelf.listed):
            found += [replace(each, name=name) for name in each.names]
        return found

    async def find(self, name: str, *, exact: bool) -> ModelName:
        if not name and not exact and self._models:
            return ModelName(max(self._models.values(), key=lambda model: model.used).name)
        if (known := self._found.get(name)) is not None and known.pack in self._models:
            return known
        listed = await asyncio.to_thread(self._shelf.listed)
        if not name and not exact and listed:
            return ModelName(listed[0].name)
        names = {alias.casefold(): each.name for each in reversed(listed) for alias in each.aliases}
        names |= {each.name.casefold(): each.name for each in reversed(listed)}
        for model in ModelName.readings(without_hub(name)):
            for word in (model.pack, model.pack.removesuffix(LATEST)):
                if (pack := names.get(word.casefold())) is not None:
                    if len(self._found) >= _MOST_NAMES:
                        self._found.clear()
                    self._found[name] = replace(model, pack=pack)
                    return self._found[name]
        raise UnknownModel(await asyncio.to_thread(self._shelf.unknown, name))

    @asynccontextmanager
    async def using(self, model: ModelName) -> AsyncIterator[Loaded]:
        loaded = await self._held(model.pack)
        try:
            pair = loaded.service.pair
            adapters, known = adapter_names(pair.manifest), modes(pair.manifest)
            if model.adapter not in (None, *adapters) or model.mode not in (None, *known):
                names = ", ".join(model_names(pair, model.pack))
                raise UnknownModel(f"the model {model.pack!r} has no such adapter or mode; there is: {names}")
            yield loaded
        finally:
            loaded.users -= 1
            loaded.used = monotonic()
            if not loaded.users:
                self._leave_later(loaded)
                await asyncio.shield(self.places.announce())

    def progress(self, name: str) -> str:
        return self._progress[name].text if name in self._progress else ""

    def waits(self, name: str) -> bool:
        return name in self._progress and self._progress[name].waits

    async def drop(self, name: str) -> None:
        model = self._models.get(name)
        if name in self._loads or (model is not None and model.users):
            raise Busy(f"{name} answers a request: try again later")
        if model is not None:
            await self._unload(model)

    def changed(self) -> None:
        self._shelf.changed()

    async def close(self, *, grace: float = 0.0, hurry: Callable[[], bool] = lambda: False) -> None:
        await end_answers([model.service for model in self.loaded], self.places, grace=grace, hurry=hurry)
        while self._loads:
            await asyncio.wait([*self._loads.values()])
        for model in self.loaded:
            await self._unload(model)

    async def _held(self, name: str) -> Loaded:
        """Return a model that is in memory, loaded if need be, with one more user."""
        deadline = monotonic() + self.places.patience
        while True:
            if self.places.closing:
                raise Busy(CLOSING)
            model = self._models.get(name)
            if model is not None and not model.leaving:
                model.users += 1
                model.stay()
                return model
            if monotonic() > deadline:
                raise Busy(f"{name} could not be loaded within {self.places.patience:g} s: try again later")
            if model is not None:
                await self.places.wait_for_room()
                continue
            if (load := self._loads.get(name)) is None:
                if self.places.queued >= self.places.waiting:
                    raise Busy("too many requests are waiting: try again later")
                load = self._loads[name] = asyncio.create_task(self._load(name))
                load.add_done_callback(lambda task: self._loaded_or_not(name, task))
            self.places.queued += 1
            try:
                await asyncio.shield(load)
            finally:
                self.places.queued -= 1

    def _loaded_or_not(self, name: str, task: asyncio.Task[None]) -> None:
        del self._loads[name], self._progress[name]
        if not task.cancelled():
            task.exception()  # those that wait for it have it; if all have left, nobody is told

    async def _load(self, name: str) -> None:
        progress = self._progress[name] = Progress(self.places)
        show_work_too(progress.bar)  # in this task's context
        async with self._turn:
            deadline = monotonic() + self.places.patience
            while not self.places.closing:
                if self._ended:
                    self._ended = False
                    await asyncio.to_thread(_collect)
                try:
                    progress.waits = False
                    pair, options = await asyncio.to_thread(self._shelf.open, name, self._shared)
                    self._models[name] = Loaded(name, Service(pair, options, self.places))
                    return
                except BudgetExceeded as error:
                    refusal, progress.waits = error, True
                whole = self._shared.whole
                if whole is not None and refusal.needed_nbytes > whole.nbytes:
                    raise refusal
                if self._ends:
                    await asyncio.wait(self._ends)
                elif not self._models:
                    raise refusal
                else:
                    await self._make_room(name, deadline)

    async def _make_room(self, name: str, deadline: float) -> None:
        """Close the model that was idle for longest; if there is none, let the one loaded first end what it answers."""
        first = min(self._models.values(), key=lambda model: model.since)
        try:
            while self._models and not self._idle():
                first.leaving = True
                if monotonic() > deadline or self.places.closing:
                    raise Busy(f"the memory budget has no room for {name} beside models that answer: try again later")
                await self.places.wait_for_room()
            for model in self._idle()[:1]:
                await self._unload(model)
        finally:
            first.leaving = False

    def _idle(self) -> list[Loaded]:
        """Return the models that no request needs, the one idle for longest first."""
        idle = [model for model in self._models.values() if not model.users]
        return sorted(idle, key=lambda model: model.used)

    async def _find_room(self) -> bool:
        """Release what no answer needs: a model, or else a session of a busy one."""
        if idle := self._idle():
            await self._unload(idle[0])
            return True
        if self._ends:
            await asyncio.wait(self._ends)
            return True
        for model in self.loaded:
            if await model.service.drop_session():
                return True
        return False

    def _unload(self, model: Loaded) -> "asyncio.Future[None]":
        """Close a model that no request needs, and return its end. Requests for it that come now load it again then."""
        model.stay()
        del self._models[model.name]
        end = asyncio.create_task(self._closed(model.service))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return asyncio.shield(end)

    async def _closed(self, service: Service) -> None:
        while await service.drop_session():
            pass
        await asyncio.to_thread(service.pair.close)
        self._ended = True
        await self.places.announce()

    def _leave_later(self, model: Loaded) -> None:
        """Close a model that has become idle once its time is over."""
        if model.keep_seconds != inf:
            model.expires = time() + model.keep_seconds
            model.timer = asyncio.get_running_loop().call_later(model.keep_seconds, self._leave, model)

    def _leave(self, model: Loaded) -> None:
        if self._models.get(model.name) is model and not model.users:
            self._unload(model)
