"""Settings of the registry, and the served versions; everything else is a rule of the API.

``served_resources`` parses upstream's ``--runtime-config``: ``KEY[=true|false]``, separated by
commas. A key is a group and version (``discovery.k8s.io/v1beta1``), one of its resources
(``discovery.k8s.io/v1beta1/endpointslices``), or ``api/all``, ``api/ga``, ``api/beta`` for all of a
stage. The more specific key wins. Only resources that are off by default can be switched: the rest
of the process needs all others.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from sliceplane.api.gates import Gates
from sliceplane.api.scheme import OPTIONAL_RESOURCES, SERVED, Resource
from sliceplane.server.store.mvcc import OBJECT_BYTES_MAX

TopologyStorage = Literal["field", "annotation"]

NODE_PORT_FIRST = 30000
NODE_PORT_LAST = 32767
DENY_SERVICE_EXTERNAL_IPS: Final = "DenyServiceExternalIPs"
#: admission plugins that are off by default, by upstream's names (``--enable-admission-plugins``)
OPTIONAL_PLUGINS: Final = (DENY_SERVICE_EXTERNAL_IPS,)
#: admission plugins that are always on; a request to enable them has no effect
PLUGINS_ALWAYS_ON: Final = (
    "LimitRanger",
    "NamespaceLifecycle",
    "ResourceQuota",
    "RuntimeClass",
    "ServiceAccount",
)
_TRUE = frozenset({"", "1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


class RegistryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``service_cidrs``: at most one range of each IP family; the first is the primary family.

    ``advertise_address`` and ``advertise_port``: the address at which clients reach this API
    server. With both set, bootstrap creates the Service ``default/kubernetes`` and its endpoints
    (``server.registry.api_service``).

    ``topology_storage``: where EndpointSlices keep the topology that clients of v1beta1 write: in
    the field ``deprecatedTopology``, or in the annotation of ``server.documents.conversion``. Both
    are read.
    """

    service_cidrs: tuple[str, ...] = ("10.96.0.0/16", "fd00:10:96::/112")
    node_port_first: int = NODE_PORT_FIRST
    node_port_last: int = NODE_PORT_LAST
    advertise_address: str = ""
    advertise_port: int = 0
    topology_storage: TopologyStorage = "field"
    gates: Gates = msgspec.field(default_factory=Gates)
    #: maximum bytes of all objects, shared by the namespaces
    object_bytes_max: int = OBJECT_BYTES_MAX
    #: the enabled plugins among ``OPTIONAL_PLUGINS``
    admission_plugins: frozenset[str] = frozenset()


def served_resources(text: str) -> tuple[Resource, ...]:
    """Returns all resources that a server with this flag serves, in the order of the scheme.

    Raises ``ValueError`` with a sentence for the user.
    """
    chosen = _parse(text)
    _refuse_unknown(chosen)
    return (*SERVED, *(resource for resource in OPTIONAL_RESOURCES if _is_on(resource, chosen)))


def _parse(text: str) -> dict[str, bool]:
    chosen: dict[str, bool] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in pair.partition("="))
        if value not in _TRUE | _FALSE:
            raise ValueError(f"invalid value {pair!r}: {value!r} is neither true nor false")
        chosen[key] = value in _TRUE
    return chosen


def _keys(resource: Resource) -> tuple[str, ...]:
    """Returns the keys that switch a resource, the least specific first."""
    stage = (
        "api/alpha"
        if "alpha" in resource.version
        else "api/beta"
        if "beta" in resource.version
        else "api/ga"
    )
    return ("api/all", stage, resource.api_version, f"{resource.api_version}/{resource.plural}")


def _is_on(resource: Resource, chosen: dict[str, bool]) -> bool:
    on = False
    for key in _keys(resource):
        on = chosen.get(key, on)
    return on


def _refuse_unknown(chosen: dict[str, bool]) -> None:
    valid = {"api/all", "api/alpha", "api/beta", "api/ga"}
    valid.update(key for resource in (*SERVED, *OPTIONAL_RESOURCES) for key in _keys(resource))
    for key, on in chosen.items():
        if key not in valid:
            raise ValueError(f"unknown api {key!r}")
        if not on and key != "api/all" and any(key in _keys(resource) for resource in SERVED):
            raise ValueError(f"{key!r} cannot be switched off")
