"""What a real server's recording knows of the watchers of a slice: how many, and bytes on the
wire.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.server.serving import Server, Stream, run_plane
from tests.waiting import until

from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.diagnose.timeline.index import Index
from sliceplane.diagnose.timeline.text import line_text
from sliceplane.diagnose.timeline.timeline import Line, Timeline
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.requests.encoders import chunk
from sliceplane.watch.io.hosting.host import ControllerEntry
from sliceplane.watch.recorder.file import read_lines

SLICES = "/apis/discovery.k8s.io/v1/endpointslices?watch=true"
SERVICE = "/api/v1/namespaces/default/services"
PODS = "/api/v1/namespaces/default/pods"
OF_WEB = "&labelSelector=kubernetes.io/service-name%3Dweb"
OF_OTHERS = "&labelSelector=kubernetes.io/service-name%21%3Dweb"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    controllers = ControllerService((ControllerEntry(EndpointSliceController),))
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0), services=(controllers,))
    yield Server(plane)
    end()


def lines(server: Server) -> list[Line]:
    reply = server.get("/sliceplane/recording")
    assert reply.code == 200
    timeline = Timeline(Index(read_lines(reply.body.splitlines(keepends=True))), "default", "web")
    return timeline.lines(0.0) if timeline.is_recorded else []


def test_three_watchers_one_slice_write(server: Server) -> None:
    web = {
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    assert server.request("POST", SERVICE, web).code == 201
    until(
        lambda: any(line.effect is not None and line.effect.slices for line in lines(server)),
        within_s=60,
    )
    assert line_text(lines(server)[-1]).endswith(" kB; sent to no watcher"), (
        "the controllers' own watch is in the process"
    )

    assert server.request("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}}).code == 201
    pod = {
        "metadata": {"name": "web-1", "labels": {"app": "web"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "web", "image": "web"}]},
    }
    assert server.request("POST", PODS, pod).code == 201
    started = int(
        server.get("/apis/discovery.k8s.io/v1/endpointslices").json["metadata"]["resourceVersion"]
    )
    streams = [
        Stream(server, f"{SLICES}&resourceVersion={started}{selector}")
        for selector in ("", "", OF_WEB)
    ]
    aside = Stream(server, f"{SLICES}&resourceVersion={started}{OF_OTHERS}")
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    kind = {"Content_Type": "application/merge-patch+json"}
    assert server.request("PATCH", f"{PODS}/web-1/status", {"status": status}, **kind).code == 200
    got = [stream.response.readline() for stream in streams]
    assert all(b"10.0.0.1" in event for event in got)

    def told() -> bool:
        effects = [line.effect for line in lines(server)]
        return any(
            effect is not None and effect.sent is not None and effect.sent.most
            for effect in effects
        )

    until(told, within_s=60)
    line = lines(server)[-1]
    assert line.effect is not None
    assert line.effect.sent is not None
    assert (line.effect.slices, line.effect.sent.fewest, line.effect.sent.most) == (1, 3, 3)
    assert line.effect.sent.size_bytes == sum(len(chunk(event)) for event in got)
    assert line_text(line).endswith(" kB sent to 3 watchers")
    for stream in (*streams, aside):
        stream.close()
