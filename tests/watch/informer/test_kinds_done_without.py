"""Kinds that a cluster may lack (``Resource.dispensable``): how often they are looked for, what is
said meanwhile.
"""

from __future__ import annotations

from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object
from sliceplane.api.scheme import ServiceCIDRs
from sliceplane.kit.rng import Rng
from sliceplane.watch.actions import StartList
from sliceplane.watch.cache import Cache
from sliceplane.watch.reflector import Reflector


def test_a_kind_that_an_older_cluster_lacks_is_looked_for_a_few_times_an_hour_and_is_never_stale() -> (
    None
):
    reflector: Reflector[Object] = Reflector(Cache(ServiceCIDRs), Rng(7))
    now = 1000.0
    reflector.start(now)
    asked = 0
    while now < 1000.0 + 3600.0:
        asked += sum(isinstance(each, StartList) for each in reflector.take_actions())
        reflector.on_list_failed(
            StatusError(404, "NotFound", "the server could not find the requested resource"), now
        )
        reflector.check()
        assert reflector.synced
        assert reflector.staleness(now) == 0.0
        due = reflector.next_deadline()
        assert due is not None
        now = due
        reflector.on_deadline(now)
    assert 8 <= asked <= 12, asked
    reflector.take_actions()
    reflector.on_page((), "9", "", now)
    assert reflector.absent is None, "it is there now"
    reflector.check()
