"""The objects that a drain follows, as far as the user may read them.

Slices and Pods are necessary. Without Services any may have a policy ``Local``; without Nodes only
those that reported are known; without Leases every node is unknown. Digests of caches need the
slices of all namespaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sliceplane.api.errors import StatusError
from sliceplane.api.findings.wording import grant_command
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import EndpointSlices, Leases, Nodes, Pods, Services
from sliceplane.consume.drain.cluster import LEASES, NODE_LEASES
from sliceplane.watch.io.base import Client

#: effect of a missing right, by the plural of the resource
_EFFECTS: Final = {
    Services.plural: "Services: any may have a policy Local",
    Nodes.plural: "Nodes: those that never reported are not known",
}


class _Refusal(NamedTuple):
    error: StatusError
    #: the verbs that are missing
    needs: str


async def readable_selections(
    client: Client, space: str, pods: Sequence[str], *, digests: bool
) -> tuple[list[Selection], list[str]]:
    """Returns the selections to follow, and a phrase for each that may not be read.

    *space*: the namespace of the *pods*, "" for several. Raises ``StatusError`` and ``Unreachable``
    if slices or Pods cannot be read.
    """
    unread: list[str] = []
    probed: dict[Selection, _Refusal | None] = {}

    async def probe(selection: Selection) -> _Refusal | None:
        if selection not in probed:
            probed[selection] = await _refusal(client, selection)
        return probed[selection]

    everywhere = digests and await probe(Selection(EndpointSlices)) is None
    slices_space = "" if everywhere else space
    one = f"metadata.name={pods[0]}" if len(pods) == 1 else ""
    leases = LEASES if await probe(LEASES) is None else NODE_LEASES
    if leases is NODE_LEASES:
        unread.append(
            _phrase("Leases of other namespaces: views are not known", "list and watch", LEASES)
        )
    desired = (
        Selection(Pods, space, field_selector=one),
        Selection(EndpointSlices, slices_space),
        Selection(Services, slices_space),
        Selection(Nodes),
        leases,
    )
    selections = []
    for selection in desired:
        refusal = await probe(selection)
        if refusal is None:
            selections.append(selection)
        elif selection.resource in (EndpointSlices, Pods):
            raise refusal.error
        elif selection.resource is not Leases:  # without Leases every node is unknown, as is said
            effect = _EFFECTS[selection.resource.plural]
            unread.append(_phrase(effect, refusal.needs, selection))
    return selections, unread


def _phrase(effect: str, needs: str, selection: Selection) -> str:
    where = f" in {selection.namespace}" if selection.namespace else ""
    resource = selection.resource
    command = grant_command(needs.replace(" and ", ","), (resource.key,))
    return f"{effect} (no right to {needs} {resource.plural}{where}; to grant it: {command})"


async def _refusal(client: Client, selection: Selection) -> _Refusal | None:
    """Returns the 403 of a list or a watch of *selection*, or ``None``."""
    needs = "list and watch"
    try:
        # Not from version 0, for which older kube-apiservers ignore the limit.
        page = await client.list(selection, limit=1)
        needs = "watch"
        async with client.watch(selection, resource_version=page.resource_version, timeout_s=1):
            return None
    except StatusError as error:
        if error.code == 403:
            return _Refusal(error, needs)
        if needs == "watch":
            return None  # the version is too old, say
        raise
