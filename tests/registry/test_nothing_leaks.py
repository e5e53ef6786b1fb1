"""After any history, and after a stop at any batch of it, exactly the living Services hold
addresses and node ports.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import IPAddresses, Services
from sliceplane.kit.rng import Rng
from sliceplane.server.registry.config import RegistryConfig
from sliceplane.server.registry.registry import Registry
from sliceplane.server.store.mvcc import Store

NAMES = st.sampled_from(["a", "b", "c"])
SPECS = st.fixed_dictionaries(
    {"type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])},
    optional={
        "ipFamilyPolicy": st.sampled_from(["SingleStack", "PreferDualStack", "RequireDualStack"]),
        "clusterIP": st.sampled_from(["10.96.0.5", "10.96.0.6", "None"]),
        "externalName": st.just("a.b"),
        "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
    },
)
STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "update", "delete", "fail", "tend"]), NAMES, SPECS),
    max_size=12,
)


def act(api: Any, verb: str, name: str, spec: Any) -> None:
    document = {
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], "selector": {"a": "b"}, **spec},
    }
    try:
        if verb == "delete":
            api.delete(Services, name)
        elif verb == "tend":
            api.registry.tend(api.now)
            api.commit()
        elif verb == "update":
            api.update(Services, name, document)
        else:
            api.create(Services, document)
    except StatusError as error:
        if error.code >= 500:
            raise


def held(store: Store) -> tuple[list[str], list[str]]:
    """What Services say that they have, and what IPAddresses say that Services have."""
    services = [json.loads(record.body) for record in store.iter_latest(Services.storage_key)]
    theirs = [
        text for each in services for text in each["spec"].get("clusterIPs", ()) if text != "None"
    ]
    return sorted(theirs), sorted(
        record.key.name for record in store.iter_latest(IPAddresses.storage_key)
    )


def restart(api: Any) -> Store:
    """The store as a new process finds it."""
    history = [event for each in api.store.resources() for event in api.store.events_since(1, each)]
    return Store.restore(sorted(history, key=lambda event: event.revision), api.store.revision, 1)


@effort(60)
@given(STEPS)
def test_at_every_batch(make_api: Any, steps: list[Any]) -> None:
    api = make_api()
    restarted = restart(api)
    for verb, name, spec in steps:
        if verb == "fail":
            api.commits = False
            act(api, "create", name, spec)
            api.store.take_staged()
            api.store.abort_staged()
            api.registry.on_aborted()
            api.commits = True
        api.events.clear()
        if verb != "fail":
            act(api, verb, name, spec)
        api.registry.check()
        # A crash here: the back end has this batch or has not (tests/server/storage); it
        # never has a part of it.
        restarted = restart(api)
        services, addresses = held(restarted)
        assert services == addresses
    again = Registry(restarted, rng=Rng(5), config=RegistryConfig())
    revision = restarted.staged_revision
    again.bootstrap(api.now)
    assert restarted.staged_revision == revision, "there is nothing to repair"
    again.check()
