"""A service as somebody sees who only compares: what is desired, and the slices that there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sliceplane.kit.ip import Family
from sliceplane.slices.content import Stored
from sliceplane.slices.packer import Desired
from sliceplane.slices.shape import ServiceShape


class Sight(NamedTuple):
    """Views of the engine's own state: good until its next event.

    ``desired``: by address type, in the order in which the service has them, and by name of the pod; an entry
    without ``identity`` is no endpoint.  Empty for a service whose endpoints are not ours to make.
    ``slices``: those labelled as ours and not on their way out, by name, of any address type, whoever owns them.
    """

    shape: ServiceShape
    desired: Mapping[Family, Mapping[str, Desired]]
    slices: Mapping[str, Stored]
