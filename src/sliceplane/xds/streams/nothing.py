"""What a client gets of a name that leads nowhere, so that a call fails at once and not after 15 s.

No variant can say to every client that there is no such listener; one whose routes have no virtual host is understood
by all of them, and replaced when the Service comes into being.  Of an assignment Envoy does not hear that it is gone;
that it is empty it does.
"""

from __future__ import annotations

from sliceplane.xds import wire
from sliceplane.xds.listeners import grpc_listener
from sliceplane.xds.names import ASSIGNMENT, LISTENER
from sliceplane.xds.resource import XdsResource


def empty_assignment(name: str) -> XdsResource:
    return XdsResource(ASSIGNMENT, name, wire.text(1, name))


def absent_listener(name: str) -> XdsResource:
    return XdsResource(LISTENER, name, grpc_listener(name, None))
