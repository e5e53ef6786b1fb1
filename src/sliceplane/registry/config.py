"""What an operator may choose about the registry; everything else is the API's own rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from sliceplane.api.gates import Gates

TopologyStorage = Literal["field", "annotation"]

NODE_PORT_FIRST = 30000
NODE_PORT_LAST = 32767
DENY_SERVICE_EXTERNAL_IPS: Final = "DenyServiceExternalIPs"
#: admission that an operator switches on, under upstream's names (``--enable-admission-plugins``)
OPTIONAL_PLUGINS: Final = (DENY_SERVICE_EXTERNAL_IPS,)
#: what every server here does, so that asking for it changes nothing
PLUGINS_ALWAYS_ON: Final = ("LimitRanger", "NamespaceLifecycle", "ResourceQuota")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """``service_cidrs``: at most one range of each IP family; the first is the primary family.

    ``advertise_address`` and ``advertise_port``: where this API server is reached.  With both set, bootstrap
    makes the Service ``default/kubernetes`` and its endpoints (``registry.api_service``).

    ``topology_storage``: where EndpointSlices keep the topology that clients of v1beta1 write: in the field
    ``deprecatedTopology``, or in the annotation of ``documents.conversion``.  Both are read.
    """

    service_cidrs: tuple[str, ...] = ("10.96.0.0/16", "fd00:10:96::/112")
    node_port_first: int = NODE_PORT_FIRST
    node_port_last: int = NODE_PORT_LAST
    advertise_address: str = ""
    advertise_port: int = 0
    topology_storage: TopologyStorage = "field"
    gates: Gates = field(default_factory=Gates)
    #: those of ``OPTIONAL_PLUGINS`` that are on
    admission_plugins: frozenset[str] = frozenset()
