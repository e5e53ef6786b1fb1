"""The two sets of slices that a Service has while it moves between upstream's EndpointSlice
controller and ours.

Both are read from the cache, so a set may lack the newest writes. That is safe in the direction in
which it is used: our slices are deleted only if upstream's are seen to have their endpoints, and
upstream's only after the server has acknowledged all of ours.

An endpoint counts by its address, with the ports of its slice: consumers merge equal ones. Only
endpoints that take new traffic count, since a set may be without the others for a moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sliceplane.api.discovery import MANAGED_BY_CONTROLLER, EndpointSlice
from sliceplane.api.selectors.adoption import (
    ANNOTATION_SELECTOR,
    MANAGED_BY_ADOPTED,
    AdoptionStage,
    Scope,
)

#: name, protocol and number of a port (``None`` for a slice without ports), and an address
Target = tuple[str, str, int | None, str]
_APPLIED_AGAIN: Final = (
    "spec.selector was applied again to an adopted Service, so upstream's controllers have it back; "
    "exclude /spec/selector from your GitOps tool, then run: sliceplane adopt service"
)
_UNREADABLE: Final = (
    f"the annotation {ANNOTATION_SELECTOR} is not KEY=VALUE,..., so the EndpointSlices stay as they "
    "are; to repair it: kubectl annotate --overwrite"
)
#: reason and message of the Event for a stage that needs a person
STAGE_PROBLEMS: Final = {
    AdoptionStage.CONFLICT: ("AdoptionConflict", _APPLIED_AGAIN),
    AdoptionStage.INVALID: ("InvalidSelector", _UNREADABLE),
}
_MANAGERS: Final = (MANAGED_BY_ADOPTED, MANAGED_BY_CONTROLLER)


def ready_targets(slices: Iterable[EndpointSlice]) -> frozenset[Target]:
    """Returns the endpoints that take new traffic. An unset condition counts as ready."""
    targets: set[Target] = set()
    for observed in slices:
        ports = [
            (port.name or "", port.protocol or "TCP", port.port) for port in observed.ports or ()
        ]
        for endpoint in observed.endpoints or ():
            if endpoint.conditions.ready is not False:
                targets.update(
                    (*port, address)
                    for port in ports or [("", "", None)]
                    for address in endpoint.addresses
                )
    return frozenset(targets)


class EngineClaims(msgspec.Struct, frozen=True):
    """The Services and slices that belong to an engine.

    ``unlabelled``: slices without the managed-by label are the engine's if a Service controls them
    (KEP-0752 as of 2019, upgrade from 1.16).
    """

    scope: Scope = Scope.SELECTING
    unlabelled: bool = False


class SliceSets:
    """The slices of both managers by Service (``namespace/name``) and name, without terminating
    ones. Owned by ``ClusterFacts``.
    """

    def __init__(self) -> None:
        self._slices: dict[str, dict[str, EndpointSlice]] = {}

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> str:
        """Handles a slice event. Returns the key of the Service whose upstream slices changed, or
        "".
        """
        before = _service_key(old)
        after = _service_key(new)
        if old is not None and before and before != after:
            slices = self._slices.get(before, {})
            slices.pop(old.metadata.name, None)
            if not slices:
                self._slices.pop(before, None)
        if new is not None and after:
            self._slices.setdefault(after, {})[new.metadata.name] = new
        is_theirs = any(
            observed is not None and observed.manager == MANAGED_BY_CONTROLLER
            for observed in (old, new)
        )
        return (after or before) if is_theirs else ""

    def theirs(self, key: str, address_type: str = "") -> tuple[EndpointSlice, ...]:
        """Returns upstream's slices of a Service, of one type or of all, by name."""
        return self._of(key, MANAGED_BY_CONTROLLER, address_type)

    def is_covered(self, key: str, address_type: str) -> bool:
        """Returns True if upstream's slices have every ready endpoint of ours. Costs O(endpoints)."""
        theirs = self.theirs(key, address_type)
        ours = self._of(key, MANAGED_BY_ADOPTED, address_type)
        return bool(theirs) and ready_targets(ours) <= ready_targets(theirs)

    def _of(self, key: str, manager: str, address_type: str) -> tuple[EndpointSlice, ...]:
        return tuple(
            observed
            for _, observed in sorted(self._slices.get(key, {}).items())
            if observed.manager == manager
            and (not address_type or observed.address_type == address_type)
        )


def _service_key(observed: EndpointSlice | None) -> str:
    if observed is None or observed.metadata.deletion_timestamp is not None:
        return ""
    if observed.manager not in _MANAGERS or not observed.service:
        return ""
    return f"{observed.metadata.namespace}/{observed.service}"
