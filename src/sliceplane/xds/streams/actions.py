"""Actions that an aggregated stream requests from its server, and its own status."""

from __future__ import annotations

import msgspec

from sliceplane.xds.streams.requests import ClientFacts


class XdsSight(msgspec.Struct, frozen=True):
    """The namespaces and Services that a client may see."""

    everything: bool = True
    namespaces: frozenset[str] = frozenset()

    def sees(self, namespace: str | None) -> bool:
        return self.everything or namespace is None or namespace in self.namespaces


class XdsAdmit(msgspec.Struct, frozen=True):
    """The server is to say what this client sees, by ``on_admitted``, or to end the stream."""

    node: ClientFacts


class XdsSend(msgspec.Struct, frozen=True):
    type_url: str
    message: bytes


class XdsFinish(msgspec.Struct, frozen=True):
    """The stream ends with this status of gRPC.  ``limit``: the word of the limit that the client
    exceeds.
    """

    status: int
    text: str
    limit: str = ""


class XdsRefusal(msgspec.Struct, frozen=True):
    """The client refuses (NACK) one of these resources, by what it says."""

    type_url: str
    names: tuple[str, ...]
    text: str


class XdsAbsent(msgspec.Struct, frozen=True):
    """The client requests a name that leads nowhere; *why* is a sentence."""

    type_url: str
    name: str
    why: str


class XdsLate(msgspec.Struct, frozen=True):
    """The client has not answered for ``LATE_S``."""

    type_url: str


class XdsApplied(msgspec.Struct, frozen=True):
    """The client has what changed first of a response, *took_s* after that changed."""

    type_url: str
    took_s: float


class XdsGateForced(msgspec.Struct, frozen=True):
    """Listeners or routes go out although the client has not accepted the clusters for
    ``GATE_S``.
    """


Action = (
    XdsAdmit | XdsSend | XdsFinish | XdsRefusal | XdsAbsent | XdsLate | XdsApplied | XdsGateForced
)


class ChannelStatus(msgspec.Struct, frozen=True):
    """How far a client is with a type."""

    type_url: str
    #: resources that it holds, as far as is known
    held: int
    sent_revision: int
    acked_revision: int
    #: since when a response waits for its answer; 0.0: none does
    waiting_since: float
    owed: int
    #: the last resource that it refused and what it said of it
    refused: tuple[str, str]
    #: requested names that lead nowhere, the newest, each with the reason
    absent: tuple[tuple[str, str], ...] = ()
