"""Kinds that a cluster may lack, or keep from a reader, and what readers of them do then: without.

One rule for all who read (informers, ``trace``, ``proxy render``, the look before ``--once``): an API that is not
served (404) or not allowed (403) is no failure if its kind is here.  What its objects would have said is not known
then, which each reader has an answer for; any other kind that cannot be read is told as the error that it is.

ServiceCIDR has a stable API since Kubernetes 1.33 (KEP-1880), and is not part of upstream's role for node proxies.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import Resource, ServiceCIDRs

DISPENSABLE: Final = frozenset((ServiceCIDRs.key,))
#: answers to a list or a watch that mean "you cannot have that here"
NOT_TO_BE_HAD: Final = (403, 404)


def is_done_without(resource: Resource, error: StatusError) -> bool:
    """Whether readers of *resource* go on without it after *error*."""
    return resource.key in DISPENSABLE and error.code in NOT_TO_BE_HAD
