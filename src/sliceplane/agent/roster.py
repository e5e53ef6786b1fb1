"""The slices of agents among all slices of a cluster, identified by the names that grants bind.

A watch by label would miss a slice whose agent writes another label, so the controller watches all
slices. In a process with other controllers that costs one reference for each slice: they share an
informer, which decodes each change once. Alone, it costs the memory of all slices, which is less
than that of all Pods, which this controller watches anyway. A change costs two dictionary look-ups;
a changed grant costs one for each of its names, at most 128.

A slice whose name is in no grant belongs to an agent without a grant if its labels fit its name:
its writer may write any slice of the namespace.
"""

from __future__ import annotations

from sliceplane.api.discovery import LABEL_MANAGED_BY, EndpointSlice
from sliceplane.consume.agents.grants import AgentGrant, agent_of_labels, read_slice
from sliceplane.consume.agents.registration import MANAGED_BY


class AgentRoster:
    """Slices are keyed ``namespace/name``, agents ``namespace/name of the agent``.  Owned by one
    controller.
    """

    def __init__(self) -> None:
        #: all slices of the cluster, as the informer's cache has them
        self._all: dict[str, EndpointSlice] = {}
        self._grants: dict[str, AgentGrant] = {}
        #: agent by slice that its grant names
        self._named: dict[str, str] = {}
        #: agent by slice, for slices that belong to an agent
        self._agent_by_slice: dict[str, str] = {}

    def on_slice(self, key: str, new: EndpointSlice | None) -> None:
        if new is None:
            self._all.pop(key, None)
        else:
            self._all[key] = new

    def on_grant(self, agent: str, grant: AgentGrant | None) -> tuple[str, ...]:
        """Returns the slices that the grant names, or named before."""
        names = _names(self._grants.pop(agent, None))
        for key in names:
            if self._named.get(key) == agent:
                del self._named[key]
        if grant is not None:
            self._grants[agent] = grant
            names = (*names, *_names(grant))
            for key in _names(grant):
                self._named[key] = agent
        return tuple(key for key in dict.fromkeys(names) if key in self._all)

    def attribute(self, key: str) -> tuple[str, str]:
        """Attributes a slice to its agent. Returns the previous and the new agent; "" for none."""
        before = self._agent_by_slice.get(key, "")
        now = self._find_agent(key)
        if now != before:
            self._agent_by_slice.pop(key, None)
            if now:
                self._agent_by_slice[key] = now
        return before, now

    def _find_agent(self, key: str) -> str:
        stored = self._all.get(key)
        if stored is None:
            return ""
        named = self._named.get(key, "")
        if named or (stored.metadata.labels or {}).get(LABEL_MANAGED_BY) != MANAGED_BY:
            return named
        agent = agent_of_labels(read_slice(stored))
        return f"{stored.metadata.namespace}/{agent}" if agent else ""

    def __getitem__(self, key: str) -> EndpointSlice:
        return self._all[key]

    def get_agent(self, key: str) -> str:
        return self._agent_by_slice.get(key, "")

    def check(self) -> None:
        assert self._agent_by_slice.keys() <= self._all.keys(), "an agent has a slice that is gone"
        for key, agent in self._agent_by_slice.items():
            assert self._find_agent(key) == agent, (
                f"{key} is {self._find_agent(key)}'s, not {agent}'s"
            )


def _names(grant: AgentGrant | None) -> tuple[str, ...]:
    """Keys of the slices that *grant* names."""
    return () if grant is None else tuple(f"{grant.namespace}/{name}" for name in grant.slices)
