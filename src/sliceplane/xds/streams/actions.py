"""Actions that an aggregated stream requests from its server, and its own status."""

from __future__ import annotations

import msgspec

from sliceplane.xds.streams.requests import ClientFacts


class VisibleNamespaces(msgspec.Struct, frozen=True):
    """The namespaces and Services that a client may see."""

    everything: bool = True
    namespaces: frozenset[str] = frozenset()

    def includes(self, namespace: str | None) -> bool:
        return self.everything or namespace is None or namespace in self.namespaces


class XdsAdmit(msgspec.Struct, frozen=True):
    """A request for admission: the server answers with ``on_admitted``, or ends the stream."""

    node: ClientFacts


class XdsSend(msgspec.Struct, frozen=True):
    """A response to write to the client."""

    type_url: str
    message: bytes


class XdsFinish(msgspec.Struct, frozen=True):
    """The stream ends with this gRPC status.  ``limit``: label of the limit that the client
    exceeds.
    """

    status: int
    text: str
    limit: str = ""


class XdsRefusal(msgspec.Struct, frozen=True):
    """The client refuses (NACK) at least one of these resources; ``text`` is its error message."""

    type_url: str
    names: tuple[str, ...]
    text: str


class XdsAbsent(msgspec.Struct, frozen=True):
    """The client requests a name that resolves to nothing; ``why`` is a sentence."""

    type_url: str
    name: str
    why: str


class XdsLate(msgspec.Struct, frozen=True):
    """The client has not answered for ``LATE_S``."""

    type_url: str


class XdsApplied(msgspec.Struct, frozen=True):
    """The client accepted a response, ``took_s`` seconds after the first change in it."""

    type_url: str
    took_s: float


class XdsGateForced(msgspec.Struct, frozen=True):
    """Listeners or routes are sent although the client has not accepted the clusters for
    ``GATE_S``.
    """


Action = (
    XdsAdmit | XdsSend | XdsFinish | XdsRefusal | XdsAbsent | XdsLate | XdsApplied | XdsGateForced
)


class ChannelStatus(msgspec.Struct, frozen=True):
    """Progress of a client with one resource type."""

    type_url: str
    #: number of resources that the client has, as far as the server knows
    resources: int
    sent_revision: int
    acked_revision: int
    #: when the unanswered response was sent, in seconds of the clock; 0.0: all are answered
    waiting_since: float
    owed: int
    #: name and error message of the last refused resource
    refused: tuple[str, str]
    #: the newest requested names that resolve to nothing, each with the reason
    absent: tuple[tuple[str, str], ...] = ()
