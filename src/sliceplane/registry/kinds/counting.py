"""What a ResourceQuota counts: numbers of objects, under two families of names (kubernetes.io, Resource Quotas).

``count/PLURAL.GROUP`` counts every object of that kind.  A few kinds have an older name besides, some with a rule of
its own: ``pods`` counts those that still run, ``services.nodeports`` the ports and not the Services (``Kind.quota``).
Amounts of cpu, memory or storage are accepted as names and never counted: nothing here runs containers.

Shared by admission, which charges, and by the controller, which counts, so that the two cannot differ.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.meta import Object
from sliceplane.api.scheme import Resource
from sliceplane.registry.kinds import KINDS, kind_of
from sliceplane.registry.kinds.resource_quota import COUNT_PREFIX

#: older names of kinds that are not served: there are no objects of them
_UNSERVED: Final = ("persistentvolumeclaims",)
COUNTED: Final = tuple(kind.resource for kind in KINDS if kind.quota.counted)


def usage(resource: Resource, projection: Object) -> dict[str, int]:
    """What one object costs; names without cost are left out.  *projection* is that of its kind."""
    return {COUNT_PREFIX + resource.key: 1, **kind_of(resource).quota.usage(projection)}


def _countable() -> dict[str, str]:
    names = dict.fromkeys(_UNSERVED, "")
    for kind in KINDS:
        if kind.quota.counted:
            names[COUNT_PREFIX + kind.resource.key] = kind.resource.key
            names.update(dict.fromkeys(kind.quota.names, kind.resource.key))
    return names


#: every name that is counted, and the key of the kind that it counts ("": one that is not served)
COUNTABLE: Final = _countable()
