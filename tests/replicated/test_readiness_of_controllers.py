"""Readiness of servers whose controllers take turns: a take-over must not take the server from its
clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.waiting import eventually

from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.server.io.plane import PlaneConfig, ServerPlane
from sliceplane.server.io.requests.request import Query


@dataclass
class Filling:
    """A host whose caches are not filled yet."""

    staleness_s: float = float("inf")

    def status(self) -> Any:
        return SimpleNamespace(
            informers=(),
            controllers=(SimpleNamespace(name="endpointslice-controller", synced=False),),
            staleness_s=self.staleness_s,
        )


def _code(plane: ServerPlane) -> int:
    return plane.health.respond("/readyz", Query(b"")).code


def _running(service: ControllerService) -> ServerPlane:
    return ServerPlane(PlaneConfig(data_dir="memory:", secure_port=0), (service,))


async def test_a_server_is_ready_when_the_first_caches_are_filled_and_stays_so_when_it_takes_over() -> (
    None
):
    service = ControllerService(default_controllers(), elect=True)
    async with _running(service) as plane:
        assert _code(plane) == 500, "nobody is known to lead"
        await eventually(lambda: _code(plane), lambda code: code == 200)
        assert service._host is not None, "it was ready without its own controllers"
        kept, service._host = service._host, Filling()  # type: ignore[assignment]
        assert _code(plane) == 200, "it takes over, and its clients must leave it"
        service._host = kept
        await plane.drain()
        assert service._host is None, "others cannot take over while it drains"
        assert service._candidate is not None
        assert service._candidate.holder == "", "the Lease was not given back"


async def test_the_only_server_is_ready_when_its_controllers_are_and_has_them_to_the_end() -> None:
    service = ControllerService(default_controllers())
    async with _running(service) as plane:
        await eventually(lambda: _code(plane), lambda code: code == 200)
        host = service._host
        service._host = Filling()  # type: ignore[assignment]
        assert _code(plane) == 500
        service._host = host
        await plane.drain()
        assert service._host is host
