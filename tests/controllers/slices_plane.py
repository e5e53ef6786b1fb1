"""A plane for tests of the EndpointSlice controller: one Service on one node, and the Pods a test
gives it.
"""

from __future__ import annotations

from tests.controllers.controller_plane import ControllerPlane
from tests.slices.fake_cluster import make_node, make_service

from sliceplane.api.core import Pod
from sliceplane.api.discovery import (
    EndpointSlice,
)
from sliceplane.controllers.endpointslice import EndpointSliceConfig, EndpointSliceController


class Plane(ControllerPlane):
    controller: EndpointSliceController

    def __init__(self, *pods: Pod, config: EndpointSliceConfig | None = None) -> None:
        self.config = config
        super().__init__(make_node("n0", "a"), make_service(), *pods)

    def make(self) -> EndpointSliceController:
        return EndpointSliceController(self.config)

    def addresses(self) -> list[str]:
        return sorted(each.addresses[0] for each in self.cluster.endpoints())

    def slice(self) -> EndpointSlice:
        (only,) = self.cluster.slices()
        return only
