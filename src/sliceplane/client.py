"""The Python client: the endpoints of a Service, or any resource, followed without losing a delete.

    async with connect() as client, EndpointView(client, "web", "shop", port="http") as view:
        await view.wait_ready(timeout=10)
        picker = view.least_outstanding()
        with picker.lease() as endpoint:
            ...  # a request to endpoint.authority

Promises: what a view or an informer holds is what the API server last said, and how long ago that
was can be asked; after any loss of connection or of history the difference is delivered, deletes
included; no state is ever torn; nothing that follows blocks on a slow reader, and a slow reader
costs bounded memory. Names in ``__all__`` stay. Never: writes to the cluster, but the mark of
``drain``; prints (it tells the standard logger ``sliceplane.client``); imports what only servers
need.

Needs the package alone, no extra.  See ``docs/python-client.md``.
"""

from __future__ import annotations

from sliceplane.api.apps import Deployment, ReplicaSet
from sliceplane.api.core import ConfigMap, Endpoints, Event, Lease, Namespace, Node, Pod, Service
from sliceplane.api.discovery import EndpointSlice
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Object, ObjectMeta, Projection
from sliceplane.api.scheme import (
    ConfigMaps,
    Deployments,
    EndpointSlices,
    EndpointsObjects,
    Events,
    Leases,
    Namespaces,
    Nodes,
    Pods,
    ReplicaSets,
    Resource,
    Services,
)
from sliceplane.consume.balancing.model import Endpoint, ViewChange
from sliceplane.consume.drain.answer import DrainAnswer
from sliceplane.consume.io.client.connecting import RawObject, connect, custom_resource
from sliceplane.consume.io.client.draining import drain
from sliceplane.consume.io.client.informer import Informer
from sliceplane.consume.io.client.picking import NoEndpoint, Picker
from sliceplane.consume.io.client.sync import SyncEndpointView
from sliceplane.consume.io.client.view import EndpointView, NotReady
from sliceplane.watch.cache import Change
from sliceplane.watch.io.base import Client, ListPage, Unreachable, WatchMessage
from sliceplane.watch.io.connection import Connection, KubeconfigError
from sliceplane.watch.io.http.client import HttpClient

__all__ = [
    "Change",
    "Client",
    "ConfigMap",
    "ConfigMaps",
    "Connection",
    "Deployment",
    "Deployments",
    "DrainAnswer",
    "Endpoint",
    "EndpointSlice",
    "EndpointSlices",
    "EndpointView",
    "Endpoints",
    "EndpointsObjects",
    "Event",
    "Events",
    "HttpClient",
    "Informer",
    "KubeconfigError",
    "Lease",
    "Leases",
    "ListPage",
    "Namespace",
    "Namespaces",
    "NoEndpoint",
    "Node",
    "Nodes",
    "NotReady",
    "Object",
    "ObjectMeta",
    "Picker",
    "Pod",
    "Pods",
    "Projection",
    "RawObject",
    "ReplicaSet",
    "ReplicaSets",
    "Resource",
    "Service",
    "Services",
    "StatusError",
    "SyncEndpointView",
    "Unreachable",
    "ViewChange",
    "WatchMessage",
    "connect",
    "custom_resource",
    "drain",
]


def __dir__() -> list[str]:
    return __all__
