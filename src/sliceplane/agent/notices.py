"""The Services whose conditions report retained endpoints, and those that request their release.

A Service with retained agents has the condition ``AgentRemovalHeld``. When none is retained any
more, the condition becomes ``False``; a Service that never had it never gets it. A new value of the
annotation ``agent.sliceplane.dev/release`` of such a Service requests once the release of all
retained agents of its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sliceplane.agent.judge import LeaseJudge
from sliceplane.api.core import Service
from sliceplane.api.meta import Document
from sliceplane.consume.agents.registration import ANNOTATION_RELEASE, CONDITION_AGENT_REMOVAL
from sliceplane.kit.times import format_time


class RetentionNotices:
    """The conditions of Services, keyed ``namespace/name``. Owned by one controller; reads its
    judge.
    """

    def __init__(self, judge: LeaseJudge, list_services: Callable[[str], Iterable[str]]) -> None:
        """*list_services*: returns the Services of an agent."""
        self._judge = judge
        self._list_services = list_services
        #: status and message of the condition in each Service
        self._observed: dict[str, tuple[str, str]] = {}
        self._release_requests: dict[str, str] = {}
        #: the judge's ``retention_changes`` at the last call of ``take_outdated``; -1: a Service
        #: has changed since
        self._reported_changes = -1

    def on_service(self, key: str, new: Service | None) -> bool:
        """Stores a Service; returns True if it newly requests a release."""
        self._observed.pop(key, None)
        self._reported_changes = -1
        if new is None:
            self._release_requests.pop(key, None)
            return False
        for condition in new.status.conditions or ():
            if condition.type == CONDITION_AGENT_REMOVAL:
                self._observed[key] = (condition.status, condition.message)
        requested = (new.metadata.annotations or {}).get(ANNOTATION_RELEASE, "")
        is_new = bool(requested) and requested != self._release_requests.get(key)
        self._release_requests[key] = requested
        return is_new and self._judge.count_retained(key) > 0

    def take_outdated(self) -> tuple[str, ...]:
        """Returns the Services whose condition is outdated; empty if nothing changed since the last
        call.
        """
        if self._reported_changes == self._judge.retention_changes:
            return ()
        self._reported_changes = self._judge.retention_changes
        concerned = {
            service for agent in self._judge.retained for service in self._list_services(agent)
        }
        return tuple(
            key
            for key in sorted(concerned | self._observed.keys())
            if self._desired(key) != self._observed.get(key)
        )

    def condition(self, key: str, now: float) -> Document | None:
        """Returns the condition to write to Service *key*; ``None``: it is up to date."""
        desired = self._desired(key)
        if desired is None or desired == self._observed.get(key):
            return None
        status, message = desired
        return {
            "type": CONDITION_AGENT_REMOVAL,
            "status": status,
            "reason": "ManySilent" if status == "True" else "Over",
            "message": message,
            "lastTransitionTime": format_time(now),
        }

    def _desired(self, key: str) -> tuple[str, str] | None:
        retention = self._judge.get_retention(key.partition("/")[0])
        retained = self._judge.count_retained(key)
        if retention is not None and retained:
            text = (
                f"{retained} agents fell silent together; their endpoints stay until "
                f"{format_time(retention.until)}, "
                "and then go by a tenth every 10 s"
            )
            return ("True", text)
        return ("False", "nothing is held") if key in self._observed else None
