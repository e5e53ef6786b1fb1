"""Named health checks behind ``/healthz``, ``/livez`` and ``/readyz`` (kubernetes.io, API health endpoints).

A check is a function that returns "" when all is well, else why not; it must not block.  The reason goes to
the single check's page only; lists say "reason withheld", as upstream does, because every client may read them.
"""

from __future__ import annotations

from collections.abc import Iterable

from sliceplane.kit.metrics import Labels, Metrics
from sliceplane.shell.server.requests.request import Query
from sliceplane.shell.server.requests.response import Response, text_response
from sliceplane.shell.transport.service import Check


class HealthChecks:
    """The checks of one process, in the order of their registration.  Owned by the plane."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {"ping": lambda: ""}
        self._ready: dict[str, Check] = {}
        self.metrics = Metrics()
        self.metrics.computed(
            "gauge", "kubernetes_healthcheck", "Health checks: 1 is well.", self._rows, "name", "type"
        )

    def add(self, name: str, check: Check) -> None:
        """Count for all three endpoints."""
        self._live[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """Count for ``/readyz`` alone: a failure means "not now", not "restart me"."""
        self._ready[name] = check

    def respond(self, path: str, query: Query) -> Response:
        """Answer ``/healthz``, ``/livez``, ``/readyz`` and ``/livez/NAME``."""
        endpoint, _, single = path[1:].partition("/")
        checks = self._checks(endpoint)
        if path.count("/") > 1:
            return self._single(checks.get(single))
        return _summary(endpoint, checks, query)

    def results(self, endpoint: str) -> list[tuple[str, str]]:
        """Each check of *endpoint* and what it says now."""
        return [(name, check()) for name, check in self._checks(endpoint).items()]

    def _rows(self) -> list[tuple[Labels, float]]:
        endpoints = ("healthz", "livez", "readyz")
        return [((name, endpoint), not why) for endpoint in endpoints for name, why in self.results(endpoint)]

    def _checks(self, endpoint: str) -> dict[str, Check]:
        return {**self._live, **self._ready} if endpoint == "readyz" else self._live

    @staticmethod
    def _single(check: Check | None) -> Response:
        if check is None:
            return text_response(404, "404 page not found\n")
        why = check()
        return text_response(500, f"internal server error: {why}\n") if why else text_response(200, "ok")


def _summary(endpoint: str, checks: dict[str, Check], query: Query) -> Response:
    excluded = set(query.all("exclude"))
    lines = []
    healthy = True
    for name, check in checks.items():
        if name in excluded:
            lines.append(f"[+]{name} excluded: ok")
        elif check():
            lines.append(f"[-]{name} failed: reason withheld")
            healthy = False
        else:
            lines.append(f"[+]{name} ok")
    unknown = _quoted(sorted(excluded - set(checks)))
    if unknown:
        lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
    if not healthy:
        return text_response(500, "\n".join([*lines, f"{endpoint} check failed", "", ""]))
    if "verbose" in query:
        return text_response(200, "\n".join([*lines, f"{endpoint} check passed", ""]))
    return text_response(200, "ok")


def _quoted(names: Iterable[str]) -> str:
    return ",".join(f'"{name}"' for name in names)
