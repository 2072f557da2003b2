"""What endpoints ask a server's models; and a server's only model, which stays in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Protocol

from edgedecode import EdgeDecodeError
from edgedecode.memory.budget import Budget

from ..offered import Listed, listed_service, model_names, named_model
from ..requests.asked import ModelName
from ..running import Service
from .places import Busy, Places

_LAST_SECONDS = 5.0
"""For answers to end that were stopped because the server closes."""
LATEST = ":latest"
"""What a name without a tag means to Ollama's clients, which may add it."""


class UnknownModel(EdgeDecodeError):
    """No model of the server has the name: HTTP 404."""


@dataclass(slots=True, eq=False)
class Loaded:
    """A model in memory. users: requests that need it. leaving: it takes no more of them, to make room for another.

    keep_seconds: how long it stays once no request needs it, as the last one asked. expires: the Unix time of that.
    stays: whatever is asked.
    """

    name: str
    service: Service
    stays: bool = False
    users: int = 0
    used: float = field(default_factory=monotonic)
    since: float = field(default_factory=monotonic)
    leaving: bool = False
    keep_seconds: float = inf
    expires: float = inf
    timer: asyncio.TimerHandle | None = None

    def waited(self, began: float) -> float:
        """Return how long a request of the time `began`, which has the model now, waited for it to be loaded."""
        return monotonic() - began if self.since > began else 0.0

    def stay(self) -> None:
        """Stay in memory whatever the last request asked."""
        self.keep_seconds = self.expires = inf
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Models(Protocol):
    """What endpoints ask a server's models."""

    places: Places
    budget: Budget
    """Of what belongs to no model."""

    @property
    def serves_library(self) -> bool:
        """Whether all models of the library are there, also those that are pulled later."""
        ...

    @property
    def budgets(self) -> Sequence[Budget]: ...
    @property
    def loaded(self) -> Sequence[Loaded]: ...

    async def names(self) -> list[str]:
        """Return the names that `model` may have, but for combinations."""
        ...

    async def listed(self) -> list[Listed]:
        """Return what is known about each of these."""
        ...

    async def find(self, name: str, *, exact: bool) -> ModelName:
        """Return the model that a name means. exact: only one that is listed, or combines what is.

        Raises UnknownModel. Whether a model that is not loaded has the adapter and the mode is known once it is.
        """
        ...

    def using(self, model: ModelName) -> AbstractAsyncContextManager[Loaded]:
        """Keep a model in memory while entered. Raises Busy, UnknownModel, and the errors of loading it."""
        ...

    def progress(self, name: str) -> str:
        """Return how far a model is that is being loaded; empty: none is, or nothing is known."""
        ...

    def waits(self, name: str) -> bool:
        """Return whether a model that is asked for waits for room, or for others to be loaded."""
        ...

    async def drop(self, name: str) -> None:
        """Take a model out of memory, if it is there. Raises Busy if a request needs it, or it is being loaded."""
        ...

    def changed(self) -> None:
        """Read the library again: a model was pulled or removed."""
        ...

    async def close(self, *, grace: float = 0.0, hurry: Callable[[], bool] = lambda: False) -> None:
        """Refuse requests that are new or wait; stop the answers that still run after `grace` seconds or in a hurry.

        Returns at the latest some seconds after that: an answer hangs if its client does not read.
        """
        ...


class OneModel:
    """A model that was loaded at the start, and stays. strict: refuse the names of others' models."""

    serves_library = False

    def __init__(self, service: Service, *, strict: bool = False) -> None:
        self.places, self.budget, self._strict = service.places, service.pair.budget, strict
        self._model = Loaded(service.pair.manifest.name, service, stays=True)

    @property
    def budgets(self) -> Sequence[Budget]:
        return [self.budget]

    @property
    def loaded(self) -> Sequence[Loaded]:
        return [self._model]

    async def names(self) -> list[str]:
        return model_names(self._model.service.pair)

    async def listed(self) -> list[Listed]:
        return [listed_service(name, self._model.service) for name in await self.names()]

    async def find(self, name: str, *, exact: bool) -> ModelName:
        pair = self._model.service.pair
        strict = exact or self._strict
        found = named_model(name, pair, strict=strict)
        if found is None and exact:
            found = named_model(name.removesuffix(LATEST), pair, strict=True)
        if found is None:
            raise UnknownModel(f"there is no model {name[:80]!r}; this server has: {', '.join(model_names(pair))}")
        return found

    @asynccontextmanager
    async def using(self, model: ModelName) -> AsyncIterator[Loaded]:
        yield self._model

    def progress(self, name: str) -> str:
        return ""

    def waits(self, name: str) -> bool:
        return False

    async def drop(self, name: str) -> None:
        raise Busy(f"{name} is the only model of this server")

    def changed(self) -> None:
        pass

    async def close(self, *, grace: float = 0.0, hurry: Callable[[], bool] = lambda: False) -> None:
        await end_answers([self._model.service], self.places, grace=grace, hurry=hurry)


async def end_answers(services: Sequence[Service], places: Places, *, grace: float, hurry: Callable[[], bool]) -> None:
    """End all answers, and close the sessions that were kept."""
    places.close()
    await places.until_idle(grace, hurry)
    for service in services:
        service.halt()
    await places.until_idle(_LAST_SECONDS, lambda: False)
    for service in services:
        while await service.drop_session():
            pass
