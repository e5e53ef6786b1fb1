"""Slices from one controller to another and back, both of them ours; docs/hand-over.md.

What is held for any two controllers that agree (which is what shadow mode shows): taking over
writes nothing that did not change, and no reader ever misses an endpoint that was ready all the
time.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.diagnose.shadow.beside import (
    NAMESPACE,
    SLICES,
    add_pod,
    controlled,
    delete_pod,
    endpoints,
    populate,
    set_ready,
    versions,
)
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.api.discovery import LABEL_SKIP_MIRROR
from sliceplane.controllers.endpoints import EndpointsConfig, EndpointsController
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.server.io.plane import PlaneConfig
from sliceplane.slices.succession import SelectorChanges
from sliceplane.watch.io.hosting.host import ControllerHost

PODS = 13
#: several slices, so that it matters what is written
MAX = 5


@pytest.fixture
def server() -> Iterator[Server]:
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0))
    yield Server(plane)
    end()


def controller() -> EndpointSliceController:
    return EndpointSliceController(EndpointSliceConfig(max_endpoints_per_slice=MAX))


def writes_of(host: ControllerHost) -> int:
    return host.status().controllers[0].tally.writes


def test_nothing_is_written_where_nothing_changed_there_and_back(server: Server) -> None:
    populate(server, PODS)
    with controlled(server, controller):
        until(lambda: len(endpoints(server)) == PODS)
    before = versions(server)
    for _ in range(2):  # there, and back
        with controlled(server, controller) as host:
            until(lambda host=host: host.status().synced)  # type: ignore[misc]
            # it has read and compared everything: what changes now is seen after that
            set_ready(server, 0, "False")
            until(lambda host=host: endpoints(server)["web-0"] is False and writes_of(host))  # type: ignore[misc]
            set_ready(server, 0)
            until(lambda host=host: endpoints(server)["web-0"] and writes_of(host) >= 2)  # type: ignore[misc]
            assert writes_of(host) == 2
        after = versions(server)
        assert before.keys() == after.keys()
        assert sum(before[name] != after[name] for name in before) == 1, (
            "only the slice of the Pod that changed"
        )
        before = after


def test_what_changed_while_nobody_worked_is_all_that_is_written(server: Server) -> None:
    populate(server, PODS)
    with controlled(server, controller):
        until(lambda: len(endpoints(server)) == PODS)
    before = versions(server)
    delete_pod(server, 3)
    add_pod(server, PODS)
    with controlled(server, controller) as host:
        until(lambda: "web-3" not in endpoints(server) and f"web-{PODS}" in endpoints(server))
        assert writes_of(host) == 1, "the new endpoint takes the place of the old one"
    after = versions(server)
    assert sum(before[name] != after.get(name) for name in before) == 1


SELECTED = f"{NAMESPACE}/endpoints/web"


def worked(server: Server, changes: SelectorChanges, *, skips_mirror: bool) -> tuple[int, int]:
    """Runs the controllers of Endpoints and of their mirror until they have done all that there
    was.

    Returns the number of their writes. A Pod that turns unready and ready again shows that nothing
    else waits.
    """
    config = EndpointsConfig(selector_changes=changes)
    mirroring = MirroringConfig(selector_changes=changes)
    with (
        controlled(server, lambda: EndpointsController(config)) as endpoints_host,
        controlled(server, lambda: EndpointSliceMirroringController(mirroring)) as mirroring_host,
    ):
        until(lambda: endpoints_host.status().synced and mirroring_host.status().synced)
        until(lambda: label_of(server) == ("true" if skips_mirror else ""))
        for ready, places in (("False", PODS - 1), ("True", PODS)):
            set_ready(server, 0, ready)
            until(
                lambda places=places: (
                    len(server.get(SELECTED).json["subsets"][0]["addresses"]) == places
                )
            )  # type: ignore[misc]
        until(lambda: mirrored(server) == ["192.0.2.5"])
        return writes_of(endpoints_host), writes_of(mirroring_host)


def label_of(server: Server) -> str | None:
    reply = server.get(SELECTED)
    return (
        reply.json["metadata"]["labels"].get(LABEL_SKIP_MIRROR, "") if reply.code == 200 else None
    )


def mirrored(server: Server) -> list[str]:
    found = server.get(f"{SLICES}?labelSelector=kubernetes.io/service-name=db").json["items"]
    return [
        address
        for one in found
        for endpoint in one["endpoints"]
        for address in endpoint["addresses"]
    ]


def test_endpoints_are_rewritten_once_each_way_and_mirrored_slices_never(server: Server) -> None:
    """Upstream's controller does not know the label ``skip-mirror`` of KEP-0752, which ours sets;
    and nothing differs with ``--selector-changes=upstream``.
    """
    populate(server, PODS)
    service = {"metadata": {"name": "db"}, "spec": {"ports": [{"port": 80}]}}
    assert server.request("POST", f"{NAMESPACE}/services", service).code == 201
    subsets = [{"addresses": [{"ip": "192.0.2.5"}], "ports": [{"port": 80}]}]
    own = {"metadata": {"name": "db"}, "subsets": subsets}
    assert server.request("POST", f"{NAMESPACE}/endpoints", own).code == 201
    upstream, ours = SelectorChanges.UPSTREAM, SelectorChanges.HAND_OVER
    assert worked(server, upstream, skips_mirror=False) == (3, 1), (
        "both are made, and one Pod changes twice"
    )
    assert worked(server, ours, skips_mirror=True) == (3, 0), "there: one rewrite, and the Pod"
    assert worked(server, upstream, skips_mirror=False) == (3, 0), "back: one rewrite, and the Pod"
    assert worked(server, upstream, skips_mirror=False) == (2, 0), "the Pod alone"


class Reader:
    """Follows the slices as a node proxy does, and notes every endpoint that is gone from one
    moment to the next.
    """

    def __init__(self, server: Server, always: set[str]) -> None:
        self._always = always
        self._shown: dict[str, set[str]] = {}
        listed = server.get(SLICES).json
        for item in listed["items"]:
            self._shown[item["metadata"]["name"]] = _ready(item)
        self.missed: list[set[str]] = []
        self.events = 0
        self._connection: http.client.HTTPConnection = server.connect()
        version = listed["metadata"]["resourceVersion"]
        self._connection.request(
            "GET", f"{SLICES}?watch=true&resourceVersion={version}&timeoutSeconds=60"
        )
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for line in self._answer:
            event: Any = json.loads(line)
            self.events += 1
            name = event["object"]["metadata"]["name"]
            self._shown[name] = set() if event["type"] == "DELETED" else _ready(event["object"])
            lost = self._always - set().union(*self._shown.values())
            if lost:
                self.missed.append(lost)
            if event["object"]["metadata"].get("labels", {}).get("test") == "end":
                return

    def finish(self, server: Server) -> None:
        marker = {
            "metadata": {"name": "zz-end", "labels": {"test": "end"}},
            "addressType": "IPv4",
            "endpoints": [],
        }
        assert server.request("POST", SLICES, marker).code == 201
        self._thread.join(120)
        assert not self._thread.is_alive()
        self._connection.close()


def _ready(item: Any) -> set[str]:
    return {each["targetRef"]["name"] for each in item["endpoints"] if each["conditions"]["ready"]}


@pytest.mark.parametrize("overlapping", [False, True])
def test_no_reader_misses_an_endpoint_during_churn(server: Server, overlapping: bool) -> None:
    """Some Pods come, go and flip all the time; the others must be there at every moment, whoever
    writes: one controller after the other, or both at once, as when a leader is slow to go.
    """
    populate(server, PODS)
    steady = {f"web-{n}" for n in range(6, PODS)}
    stop = threading.Event()

    def churn() -> None:
        turn = 0
        while not stop.is_set():
            set_ready(server, turn % 3, "False" if turn // 3 % 2 else "True")
            if turn % 4 == 0:
                delete_pod(server, 3 + turn // 4 % 3)
                add_pod(server, 3 + turn // 4 % 3)
            turn += 1

    churning = threading.Thread(target=churn)
    with controlled(server, controller) as first:
        until(lambda: len(endpoints(server)) == PODS)
        reader = Reader(server, steady)
        churning.start()
        until(lambda: writes_of(first) > 10)
        if overlapping:
            with controlled(server, controller) as second:
                until(lambda: writes_of(first) > 20 and writes_of(second) > 5)
    with controlled(server, controller) as third:
        until(lambda: writes_of(third) > 10)
        stop.set()
        churning.join(120)
        for number in range(6):
            set_ready(server, number)
        until(lambda: endpoints(server) == dict.fromkeys((f"web-{n}" for n in range(PODS)), True))
    reader.finish(server)
    assert reader.events > 20
    assert reader.missed == []
    # nobody is in two slices for good
    listed = [
        e["targetRef"]["name"] for one in server.get(SLICES).json["items"] for e in one["endpoints"]
    ]
    assert sorted(listed) == sorted(set(listed))
    assert server.get(f"{NAMESPACE}/services/web").code == 200
