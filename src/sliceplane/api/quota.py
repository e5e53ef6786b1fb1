"""What a ResourceQuota counts: numbers of objects, under two families of names (reference B15).

``count/PLURAL.GROUP`` counts every object of that kind.  A few kinds have an older name besides, some with a rule of
its own: ``pods`` counts those that still run, ``services.nodeports`` the ports and not the Services.  Amounts of
cpu, memory or storage are accepted as names and never counted: nothing here runs containers.

Pure; shared by admission, which charges, and by the controller, which counts, so that the two cannot differ.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from sliceplane.api.core import Pod, Service
from sliceplane.api.meta import Object
from sliceplane.api.scheme import (
    RESOURCES,
    ConfigMaps,
    Events,
    Pods,
    Resource,
    ResourceQuotas,
    Secrets,
    Services,
)
from sliceplane.api.service_rules import EXTERNAL_TYPES

COUNT_PREFIX: Final = "count/"
NODE_PORTS: Final = "services.nodeports"
LOAD_BALANCERS: Final = "services.loadbalancers"
#: older names of kinds that are not served: there are none of them
_UNSERVED: Final = ("persistentvolumeclaims", "replicationcontrollers")
_OLD_NAMES: Final = {each.key: each.plural for each in (ConfigMaps, Pods, ResourceQuotas, Secrets, Services)}
#: Events come and go by themselves, and no quota holds them
COUNTED: Final = tuple(each for each in RESOURCES if each.namespaced and each.storage_key != Events.key)
_SUFFIXES: Final = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
AMOUNT_MAX: Final = Decimal(2**63 - 1)
_AMOUNT_MIN: Final = Decimal("1e-9")
#: exponents beyond this change nothing any more
_POWER_MAX: Final = 4000
_POWER_DIGITS: Final = 6
_AMOUNT: Final = re.compile(r"\s*([+-]?[0-9.]+)(?:([eE][+-]?[0-9]+)|([A-Za-z]*))\s*")


def count_name(resource: Resource) -> str:
    return COUNT_PREFIX + resource.key


def usage(resource: Resource, found: Object) -> dict[str, int]:
    """What one object costs; names without cost are left out.  *found* is the projection of its kind."""
    used = {count_name(resource): 1}
    old_name = _OLD_NAMES.get(resource.key)
    if isinstance(found, Pod):
        if found.status.phase not in ("Failed", "Succeeded"):
            used[Pods.plural] = 1
    elif old_name is not None:
        used[old_name] = 1
    if isinstance(found, Service):
        ports = sum(1 for port in found.spec.ports or () if port.node_port)
        if ports and found.spec.type in EXTERNAL_TYPES:
            used[NODE_PORTS] = ports
        if found.spec.type == "LoadBalancer":
            used[LOAD_BALANCERS] = 1
    return used


def _countable() -> dict[str, str]:
    names = {count_name(each): each.key for each in COUNTED}
    names |= {old: key for key, old in _OLD_NAMES.items()}
    return {**names, NODE_PORTS: Services.key, LOAD_BALANCERS: Services.key, **dict.fromkeys(_UNSERVED, "")}


#: every name that is counted, and the key of the kind that it counts ("": one that is not served)
COUNTABLE: Final = _countable()


def amount(quantity: str | int) -> Decimal:
    """The number that a quantity (``5``, ``"1k"``, ``"2Gi"``, ``"1e3"``) stands for.  It must be a good one.

    Like upstream's, numbers end at ``AMOUNT_MAX`` and at a billionth; what is beyond counts as the last one.
    """
    match = _AMOUNT.fullmatch(str(quantity))
    assert match is not None, f"{quantity!r} is no quantity"
    mantissa = Decimal(match[1])
    if not mantissa:
        return mantissa
    power = max(-_POWER_MAX, min(_POWER_MAX, int(match[2][1:][:_POWER_DIGITS]))) if match[2] else 0
    factor = _SUFFIXES[match[3] or ""]
    size = mantissa.adjusted() + power + factor.adjusted()
    if size > AMOUNT_MAX.adjusted():
        return AMOUNT_MAX.copy_sign(mantissa)
    if size < _AMOUNT_MIN.adjusted():
        return _AMOUNT_MIN.copy_sign(mantissa)
    return max(-AMOUNT_MAX, min(AMOUNT_MAX, mantissa.scaleb(power) * factor))
