"""The changes of a question, parsed from words: ``zone-lost=zone-b``, ``replicas=12``,
``traffic-distribution=PreferSameZone``.

A setting is read twice: its text alone (``parse``), and with its cluster (``checked``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from sliceplane.api.core import Service
from sliceplane.api.discovery import LABEL_ZONE
from sliceplane.api.findings.wording import nearest, no_such
from sliceplane.controllers.endpointslice import EndpointSliceConfig
from sliceplane.diagnose.explain.checks.pods.silent_nodes import KUBELET_LOST_S
from sliceplane.kit.integers import NotAnInteger, parse_int64
from sliceplane.kit.names import check_label_value
from sliceplane.kit.times import parse_duration
from sliceplane.lab.whatif.state import ClusterState, ServiceWorkload, WhatIfError
from sliceplane.slices.engine import MAX_ENDPOINTS_DEFAULT
from sliceplane.slices.subsets import APPROACHES, Subsetting

REPLICAS_MAX: Final = 50_000
NODES_ADDED_MAX: Final = 1_000
NONE: Final = "none"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of controllers, kubelets and Pods that no object contains. ``ready_delay_s``
    ``None``: as long as the existing Pods took. ``termination_s`` ``None``: the default of emulated
    kubelets if Nodes are emulated, else a Pod's own grace period.
    """

    max_endpoints_per_slice: int = MAX_ENDPOINTS_DEFAULT
    subsetting: Subsetting = Subsetting.OFF
    defragment: bool = False
    batch_period_s: float = 0.0
    ready_delay_s: float | None = None
    termination_s: float | None = None
    #: seconds after which a silent Node is Unknown, and its Pods are not ready
    #: (node-monitor-grace-period)
    node_grace_s: float = KUBELET_LOST_S

    @property
    def config(self) -> EndpointSliceConfig:
        return EndpointSliceConfig(
            max_endpoints_per_slice=self.max_endpoints_per_slice,
            endpointslice_updates_batch_period_s=self.batch_period_s,
            subsetting=None if self.subsetting is Subsetting.OFF else self.subsetting,
            defragment=self.defragment,
        )


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a question. ``texts``: as the user wrote them."""

    texts: tuple[str, ...] = ()
    zones_lost: tuple[str, ...] = ()
    zones_added: tuple[tuple[str, int], ...] = ()
    node_zones: tuple[tuple[str, str], ...] = ()
    replicas: tuple[tuple[ServiceWorkload, int], ...] = ()
    rollouts: tuple[ServiceWorkload, ...] = ()
    strategy: tuple[tuple[str, int | str], ...] = ()
    #: a value, or ``NONE``
    traffic_distribution: str = ""
    topology_mode: str = ""
    running: tuple[tuple[str, Any], ...] = ()

    def running_after(self, before: Running) -> Running:
        return replace(before, **dict(self.running))


class Setting(msgspec.Struct, frozen=True):
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


def parse(text: str, keys: tuple[str, ...]) -> Setting:
    """Parses one setting. Raises ``ValueError`` with a sentence."""
    key, equals, value = text.partition("=")
    if key not in keys:
        near = nearest(key, keys)
        raise ValueError(
            f"{key!r} is nothing that can be set" + (f"; is {near[0]} meant?" if near else "")
        )
    if not equals or not value:
        raise ValueError(f"{key}: say which value: {key}={EXAMPLES[key]}")
    return Setting(key, value)


def _number(value: str, low: int, high: int) -> int:
    try:
        number = parse_int64(value)
    except NotAnInteger:
        raise ValueError(f"{value!r} is no whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{number} is not between {low:,} and {high:,}")
    return number


def _flag(value: str) -> bool:
    if value not in ("yes", "no", "true", "false"):
        raise ValueError(f"{value!r} is neither yes nor no")
    return value in ("yes", "true")


def _duration(value: str) -> float:
    seconds = parse_duration(value)
    if seconds is None or seconds < 0:
        raise ValueError(f"{value!r} is no duration such as 10s or 2m")
    return seconds


def _approach(value: str) -> Subsetting:
    if value != "off" and value not in APPROACHES:
        raise ValueError(f"{value!r} is none of off, {', '.join(APPROACHES)}")
    return APPROACHES.get(value, Subsetting.OFF)


def _amount(value: str) -> int | str:
    percent = value.removesuffix("%")
    number = _number(percent, 0, 100 if percent != value else REPLICAS_MAX)
    return value if percent != value else number


#: field and parser of each setting of ``Running``
_RUNNING: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "max-endpoints-per-slice": ("max_endpoints_per_slice", lambda value: _number(value, 1, 1000)),
    "subsetting": ("subsetting", _approach),
    "defragment": ("defragment", _flag),
    "batch-period": ("batch_period_s", _duration),
    "ready-delay": ("ready_delay_s", _duration),
    "termination": ("termination_s", _duration),
    "node-grace": ("node_grace_s", _duration),
}
#: every key with an example of its value, in the order of the help
EXAMPLES: Final = {
    "zone-lost": "zone-b",
    "zone-added": "zone-d:3",
    "node-zone": "node-1:zone-b",
    "replicas": "12",
    "rollout": "yes",
    "max-surge": "25%",
    "max-unavailable": "0",
    "traffic-distribution": "PreferSameZone",
    "topology-mode": "Auto",
    "max-endpoints-per-slice": "1000",
    "subsetting": "PreferZone",
    "defragment": "yes",
    "ready-delay": "10s",
    "termination": "30s",
    "node-grace": "50s",
    "batch-period": "1s",
}
KEYS: Final = tuple(EXAMPLES)
NOW_KEYS: Final = tuple(_RUNNING)
_STRATEGY: Final = {"max-surge": "maxSurge", "max-unavailable": "maxUnavailable"}
assert {member for member, _ in _RUNNING.values()} == set(Running.__struct_fields__), (
    "a member is not set"
)


def running(settings: tuple[Setting, ...]) -> Running:
    """Returns the settings as they are now. Raises ``WhatIfError``."""
    result = Running()
    for setting in settings:
        member, read = _RUNNING[setting.key]
        result = replace(result, **{member: _read(setting, read)})
    return result


def _read(setting: Setting, read: Callable[[str], Any]) -> Any:
    try:
        return read(setting.value)
    except ValueError as error:
        raise WhatIfError(f"{setting}: {error}") from error


def checked(settings: tuple[Setting, ...], state: ClusterState, service: Service) -> Changes:
    """Returns the changes resolved for *service* in *state*. Raises ``WhatIfError``."""
    changes = Changes(texts=tuple(map(str, settings)))
    for setting in settings:
        changes = _WITH[setting.key](changes, setting, state, service)
    if changes.strategy and not changes.rollouts:
        raise WhatIfError("max-surge and max-unavailable count in a rollout: add rollout=yes")
    return changes


def zones_of(state: ClusterState) -> tuple[str, ...]:
    return tuple(
        sorted({(node.metadata.labels or {}).get(LABEL_ZONE, "") for node in state.nodes} - {""})
    )


def _zone_lost(changes: Changes, setting: Setting, state: ClusterState, _: Service) -> Changes:
    zones = zones_of(state)
    if setting.value not in zones:
        raise WhatIfError(no_such("Node in zone", setting.value, zones))
    return replace(changes, zones_lost=(*changes.zones_lost, setting.value))


def _zone_added(changes: Changes, setting: Setting, state: ClusterState, _: Service) -> Changes:
    zone, colon, number = setting.value.partition(":")
    zones = zones_of(state)
    for problem in check_label_value(zone):
        raise WhatIfError(f"{setting}: {problem}")
    if zone in zones:
        raise WhatIfError(f"{setting}: zone {zone} is there already")
    if not state.nodes:
        raise WhatIfError(f"{setting}: there is no Node that those of a new zone could be like")
    nodes = (
        _read(Setting(setting.key, number), lambda value: _number(value, 1, NODES_ADDED_MAX))
        if colon
        else (max(1, round(len(state.nodes) / max(len(zones), 1))))
    )
    return replace(changes, zones_added=(*changes.zones_added, (zone, nodes)))


def _node_zone(changes: Changes, setting: Setting, state: ClusterState, _: Service) -> Changes:
    node, __, zone = setting.value.partition(":")
    names = tuple(node.metadata.name for node in state.nodes)
    if node not in names:
        raise WhatIfError(no_such("Node", node, names))
    for problem in check_label_value(zone):
        raise WhatIfError(f"{setting}: {problem}")
    return replace(changes, node_zones=(*changes.node_zones, (node, zone)))


def _workload(name: str, state: ClusterState, service: Service) -> ServiceWorkload:
    workloads = state.workloads(service)
    key = service.metadata.key
    if not workloads:
        raise WhatIfError(
            f"no Deployment, StatefulSet or ReplicaSet makes the Pods of Service {key}"
        )
    if not name:
        if len(workloads) > 1:
            names = ", ".join(workload.name for workload in workloads)
            raise WhatIfError(
                f"several make the Pods of Service {key}: say which, as NAME:VALUE; there are "
                f"{names}"
            )
        return workloads[0]
    workload = next((workload for workload in workloads if workload.name == name), None)
    if workload is None:
        workload_names = tuple(workload.name for workload in workloads)
        raise WhatIfError(no_such(f"workload of Service {key} with the name", name, workload_names))
    return workload


def _replicas(changes: Changes, setting: Setting, state: ClusterState, service: Service) -> Changes:
    name, _, number = setting.value.rpartition(":")
    replicas = _read(Setting(setting.key, number), lambda value: _number(value, 0, REPLICAS_MAX))
    return replace(
        changes, replicas=(*changes.replicas, (_workload(name, state, service), replicas))
    )


def _rollout(changes: Changes, setting: Setting, state: ClusterState, service: Service) -> Changes:
    workload = _workload("" if setting.value == "yes" else setting.value, state, service)
    if workload.resource.kind == "ReplicaSet":
        raise WhatIfError(f"{workload} has no rollouts: a Deployment or a StatefulSet has")
    return replace(changes, rollouts=(*changes.rollouts, workload))


def _strategy(changes: Changes, setting: Setting, _: ClusterState, __: Service) -> Changes:
    value = (_STRATEGY[setting.key], _read(setting, _amount))
    return replace(changes, strategy=(*changes.strategy, value))


def _distribution(changes: Changes, setting: Setting, _: ClusterState, __: Service) -> Changes:
    return replace(changes, traffic_distribution=setting.value)


def _mode(changes: Changes, setting: Setting, _: ClusterState, __: Service) -> Changes:
    return replace(changes, topology_mode=setting.value)


def _running(changes: Changes, setting: Setting, _: ClusterState, __: Service) -> Changes:
    member, read = _RUNNING[setting.key]
    return replace(changes, running=(*changes.running, (member, _read(setting, read))))


_WITH: Final[dict[str, Callable[[Changes, Setting, ClusterState, Service], Changes]]] = {
    "zone-lost": _zone_lost,
    "zone-added": _zone_added,
    "node-zone": _node_zone,
    "replicas": _replicas,
    "rollout": _rollout,
    "max-surge": _strategy,
    "max-unavailable": _strategy,
    "traffic-distribution": _distribution,
    "topology-mode": _mode,
    **dict.fromkeys(_RUNNING, _running),
}
