"""The Services whose conditions report retained endpoints, and those that request their release.

A Service with agents that are held has the condition ``AgentRemovalHeld``; when nothing of it is
held any more the condition says ``False``, and a Service that never had it never gets it. A new
value of the annotation ``agent.sliceplane.dev/release`` of such a Service asks once for the release
of all that is held in its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sliceplane.agent.judge import LeaseJudge
from sliceplane.api.core import Service
from sliceplane.api.meta import Document
from sliceplane.consume.agents.registration import ANNOTATION_RELEASE, CONDITION_HELD
from sliceplane.kit.times import format_time


class HoldNotices:
    """Services are keyed ``namespace/name``.  Owned by one controller, and reads its judge."""

    def __init__(self, judge: LeaseJudge, services_of: Callable[[str], Iterable[str]]) -> None:
        """*services_of*: an agent's."""
        self._judge = judge
        self._services_of = services_of
        #: status and message of the condition that Services show
        self._shown: dict[str, tuple[str, str]] = {}
        self._asked: dict[str, str] = {}
        #: the judge's ``held_changes`` of which Services were told last; -1: a Service has changed
        #: since
        self._told_changes = -1

    def on_service(self, key: str, new: Service | None) -> bool:
        """Notes a Service; returns True if it requests a release now."""
        self._shown.pop(key, None)
        self._told_changes = -1
        if new is None:
            self._asked.pop(key, None)
            return False
        for condition in new.status.conditions or ():
            if condition.type == CONDITION_HELD:
                self._shown[key] = (condition.status, condition.message)
        asked = (new.metadata.annotations or {}).get(ANNOTATION_RELEASE, "")
        is_new = bool(asked) and asked != self._asked.get(key)
        self._asked[key] = asked
        return is_new and self._judge.held_of(key) > 0

    def take_outdated(self) -> tuple[str, ...]:
        """Services that do not say what is so; empty where nothing has changed since the last
        time.
        """
        if self._told_changes == self._judge.held_changes:
            return ()
        self._told_changes = self._judge.held_changes
        concerned = {service for agent in self._judge.held for service in self._services_of(agent)}
        return tuple(
            key
            for key in sorted(concerned | self._shown.keys())
            if self._wanted(key) != self._shown.get(key)
        )

    def condition(self, key: str, now: float) -> Document | None:
        """Returns the condition that Service *key* lacks; ``None``: it is up to date."""
        wanted = self._wanted(key)
        if wanted is None or wanted == self._shown.get(key):
            return None
        status, message = wanted
        return {
            "type": CONDITION_HELD,
            "status": status,
            "reason": "ManySilent" if status == "True" else "Over",
            "message": message,
            "lastTransitionTime": format_time(now),
        }

    def _wanted(self, key: str) -> tuple[str, str] | None:
        hold = self._judge.hold_of(key.partition("/")[0])
        held = self._judge.held_of(key)
        if hold is not None and held:
            text = (
                f"{held} agents fell silent together; their endpoints stay until "
                f"{format_time(hold.until)}, "
                "and then go by a tenth every 10 s"
            )
            return ("True", text)
        return ("False", "nothing is held") if key in self._shown else None
