"""A running plane forgets Events after an hour, and counts them."""

from __future__ import annotations

import time

from tests.shell.server.serving import Server, run_plane

from sliceplane.shell.server.config import Periods, PlaneConfig

PATH = "/api/v1/namespaces/default/events"


def test_an_event_is_gone_after_an_hour() -> None:
    ahead_s = 0.0
    plane, end = run_plane(
        PlaneConfig(data_dir="memory:", secure_port=0),
        clock=lambda: time.time() + ahead_s,
        periods=Periods(expiry_s=0.05),
    )
    try:
        server = Server(plane)
        event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}}
        assert server.request("POST", PATH, body=event).code == 201
        time.sleep(0.2)
        assert server.request("GET", f"{PATH}/e").code == 200
        ahead_s = 3601.0
        deadline = time.monotonic() + 60
        while server.request("GET", f"{PATH}/e").code != 404:
            assert time.monotonic() < deadline, "the event is still there"
        assert b"sliceplane_expired_events_total 1.0" in server.request("GET", "/metrics").body
    finally:
        end()
