"""Two Services, each with what gRPC and Envoy ask for."""

from __future__ import annotations

import pytest
from tests.xds.streams.clients import API, WEB, FakeView

from sliceplane.xds.names import ASSIGNMENT, CLUSTER, LISTENER


@pytest.fixture
def view() -> FakeView:
    view = FakeView()
    for key in (API, WEB):
        view.put(CLUSTER, key, f"{key}=1")
        view.put(ASSIGNMENT, key, f"{key}=a")
    view.put(LISTENER, "api", f"api={API}")
    view.put(LISTENER, "web", f"web={WEB}")
    view.take_changes()
    return view
