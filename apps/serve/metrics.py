"""Counters in Prometheus's text format."""

from __future__ import annotations

from collections import Counter

from edgedecode.decoding.stats import Stats

from .running import Service

__all__ = ["Metrics"]


class Metrics:
    """What the server has done since it started."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._tokens: Counter[str] = Counter()

    def count_request(self, path: str, status: int) -> None:
        self._requests[path, status] += 1

    def count_answer(self, stats: Stats) -> None:
        self._tokens["prompt"] += stats.prompt_tokens
        self._tokens["cached"] += stats.cached_tokens
        self._tokens["written"] += stats.tokens
        self._tokens["drafted"] += stats.proposed
        self._tokens["accepted"] += stats.accepted

    def text(self, service: Service) -> str:
        """Return all figures."""
        lines = ["# TYPE edgedecode_requests_total counter"]
        for (path, status), count in sorted(self._requests.items()):
            lines.append(f'edgedecode_requests_total{{path="{path}",status="{status}"}} {count}')
        lines.append("# TYPE edgedecode_tokens_total counter")
        kinds = ("prompt", "cached", "written", "drafted", "accepted")
        lines += [f'edgedecode_tokens_total{{kind="{kind}"}} {self._tokens[kind]}' for kind in kinds]
        budget = service.pair.budget
        gauges = {
            "answers_running": service.running,
            "requests_waiting": service.queued,
            "memory_leased_bytes": budget.used_nbytes,
            "memory_limit_bytes": budget.limit_nbytes or 0,
        }
        for name, value in gauges.items():
            lines += [f"# TYPE edgedecode_{name} gauge", f"edgedecode_{name} {value}"]
        return "\n".join(lines) + "\n"
