"""The slices for one Endpoints object: one for each subset and IP family.

Subsets are in their canonical form, so every port is in one of them. A limit applies to the
addresses of each subset, ready ones first, both families together. Addresses that are not IP
addresses are skipped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from sliceplane.api.codec import encode
from sliceplane.api.core import EndpointAddress, Endpoints
from sliceplane.api.discovery import (
    ANNOTATION_TRIGGER_TIME,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    MANAGED_BY_MIRRORING,
    EndpointConditions,
    EndpointSlice,
    SliceEndpoint,
)
from sliceplane.api.meta import ObjectMeta, ObjectReference, OwnerReference
from sliceplane.kit.ip import Family, canonical_with_family
from sliceplane.slices.content import Ports, canonical_ports, comparable
from sliceplane.slices.endpoints.subsets import canonical

ANNOTATION_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
ADDRESSES_PER_SUBSET_MAX: Final = 1000
_OWN_ANNOTATIONS: Final = (ANNOTATION_TRIGGER_TIME, ANNOTATION_LAST_APPLIED)

#: identity of an endpoint: addresses, host name, namespace and name of the target
Identity = tuple[str, ...]
#: endpoints by identity, as JSON without the fields that no comparison reads
Content = dict[Identity, bytes]
#: the key of a group of slices of one object
GroupKey = tuple[str, Ports]


class MirrorGroup(NamedTuple):
    """One slice that must exist. ``texts`` are its encoded endpoints, in the order of
    ``content``.
    """

    address_type: Family
    ports: Ports
    content: Content
    texts: tuple[bytes, ...]


class Mirror(NamedTuple):
    """The slices that must exist. ``skipped``: number of addresses that were left out, including
    ``invalid`` ones.
    """

    groups: tuple[MirrorGroup, ...] = ()
    skipped: int = 0
    invalid: int = 0

    @property
    def endpoints(self) -> int:
        return sum(len(group.content) for group in self.groups)


def mirror_of(endpoints: Endpoints, max_per_subset: int) -> Mirror:
    """Returns the slices for *endpoints*. Costs O(addresses)."""
    groups: list[MirrorGroup] = []
    skipped = 0
    invalid = 0
    for subset in canonical(endpoints.subsets or ()):
        by_family: dict[Family, tuple[Content, list[bytes]]] = {"IPv4": ({}, []), "IPv6": ({}, [])}
        capacity = max_per_subset
        for ready, addresses in ((True, subset.ready), (False, subset.not_ready)):
            for address in addresses.values():
                if capacity == 0:
                    break
                parsed = canonical_with_family(address.ip)
                if parsed is None:
                    invalid += 1
                    continue
                capacity -= 1
                content, texts = by_family[parsed[0]]
                _add(_endpoint(parsed[1], address, ready=ready), content, texts)
        skipped += len(subset.ready) + len(subset.not_ready) - (max_per_subset - capacity)
        groups.extend(
            MirrorGroup(kind, subset.ports, content, tuple(texts))
            for kind, (content, texts) in by_family.items()
            if content
        )
    return Mirror(tuple(groups), skipped, invalid)


def _endpoint(ip: str, address: EndpointAddress, *, ready: bool) -> SliceEndpoint:
    return SliceEndpoint(
        addresses=(ip,),
        conditions=EndpointConditions(ready=ready),
        hostname=address.hostname or None,
        target_ref=address.target_ref,
        node_name=address.node_name or None,
    )


def _add(endpoint: SliceEndpoint, content: Content, texts: list[bytes]) -> None:
    """Adds an endpoint unless there is one with the same identity: two spellings of one address are
    one endpoint.
    """
    identity = identity_of(endpoint)
    if identity not in content:
        text = encode(endpoint)
        texts.append(text)
        target = endpoint.target_ref
        is_comparable = target is None or not target.resource_version
        content[identity] = text if is_comparable else encode(_comparable(endpoint))


def content_of(observed: EndpointSlice) -> Content:
    """Returns the content of a slice. A duplicate endpoint gets an identity that is
    never desired.
    """
    content: Content = {}
    for index, endpoint in enumerate(observed.endpoints or ()):
        identity = identity_of(endpoint)
        content[(*identity, str(index)) if identity in content else identity] = encode(
            _comparable(endpoint)
        )
    return content


def identity_of(endpoint: SliceEndpoint) -> Identity:
    target = endpoint.target_ref or ObjectReference()
    return (*sorted(endpoint.addresses), endpoint.hostname or "", target.namespace, target.name)


def _comparable(endpoint: SliceEndpoint) -> SliceEndpoint:
    """Returns ``content.comparable`` without hints, which belong to another writer."""
    endpoint = comparable(endpoint)
    return endpoint if endpoint.hints is None else msgspec.structs.replace(endpoint, hints=None)


def group_key(observed: EndpointSlice) -> GroupKey:
    return observed.address_type, canonical_ports(observed.ports or ())


# -- metadata


class SliceMeta(NamedTuple):
    """The desired metadata of every slice of one object."""

    labels: dict[str, str]
    annotations: dict[str, str] | None
    owner: OwnerReference

    def fits(self, meta: ObjectMeta) -> bool:
        """Returns True if *meta* is as desired. Other owners beside ours are allowed."""
        same = meta.labels == self.labels and (meta.annotations or None) == self.annotations
        return same and self.owner in (meta.owner_references or ())


def slice_meta(endpoints: Endpoints) -> SliceMeta:
    meta = endpoints.metadata
    labels = {
        **(meta.labels or {}),
        LABEL_SERVICE_NAME: meta.name,
        LABEL_MANAGED_BY: MANAGED_BY_MIRRORING,
    }
    annotations = {
        k: v for k, v in sorted((meta.annotations or {}).items()) if k not in _OWN_ANNOTATIONS
    }
    owner = OwnerReference(
        api_version="v1",
        kind="Endpoints",
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    return SliceMeta(dict(sorted(labels.items())), annotations or None, owner)
