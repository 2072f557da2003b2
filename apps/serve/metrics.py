"""Counters in Prometheus's text format."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgedecode.decoding.stats import Stats

from .models.one import Models
from .requests.tools import Call


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()
        self._notes = self._faults = 0

    def count_request(self, path: str, status: int) -> None:
        self._requests[path, status] += 1

    def count_notes(self, count: int) -> None:
        """Count what requests asked for and did not get."""
        self._notes += count

    def count_answer(self, stats: Stats, calls: Sequence[Call] = ()) -> None:
        """Count an answer and the calls that it makes."""
        self._faults += sum(call.fault is not None for call in calls)
        self._tokens["prompt"] += stats.prompt_tokens
        self._tokens["cached"] += stats.cached_tokens
        self._tokens["written"] += stats.tokens
        self._tokens["drafted"] += stats.proposed
        self._tokens["accepted"] += stats.accepted

    def text(self, models: Models) -> str:
        """Return all figures."""
        limit, places = models.budget.limit, models.places
        kinds = ("prompt", "cached", "written", "drafted", "accepted")
        requests = sorted(self._requests.items())
        figures: list[tuple[str, str, Mapping[str, int]]] = [
            ("requests_total", "counter", {f'{{path="{path}",status="{code}"}}': n for (path, code), n in requests}),
            ("tokens_total", "counter", {f'{{kind="{kind}"}}': self._tokens[kind] for kind in kinds}),
            ("notes_total", "counter", {"": self._notes}),
            ("call_faults_total", "counter", {"": self._faults}),
            ("answers_running", "gauge", {"": places.running}),
            ("requests_waiting", "gauge", {"": places.queued}),
            ("memory_leased_bytes", "gauge", {"": sum(budget.used_nbytes for budget in models.budgets)}),
            ("memory_limit_bytes", "gauge", {"": 0 if limit is None else limit.whole}),
        ]
        lines = []
        for name, kind, values in figures:
            lines.append(f"# TYPE edgedecode_{name} {kind}")
            lines += [f"edgedecode_{name}{labels} {value}" for labels, value in values.items()]
        return "\n".join(lines) + "\n"


class Counting:
    """ASGI middleware that counts every reply, with those of the guards.

    paths: known ones. All others are counted as one: clients could otherwise add labels without bound.
    """

    def __init__(self, app: ASGIApp, *, metrics: Metrics, paths: Collection[str]) -> None:
        self._app, self._metrics, self._paths = app, metrics, frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count_request(path, message["status"])
            await send(message)

        await self._app(scope, receive, counted)
