"""Flow schemas and priority levels as values: what ``flowcontrol.apiserver.k8s.io`` objects say.
Frozen.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from sliceplane.kit.shares import Standing

#: stands for every verb, group, resource, namespace, path or name
ANY = "*"

Kind = Literal["read", "write"]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A priority level. ``shares`` are in proportion to those of the other levels; ``queues`` 0:
    nothing waits, what finds no seat is refused. ``exempt``: no limit at all, and no shares.
    """

    name: str
    shares: int = 0
    lendable_percent: int = 0
    exempt: bool = False
    queues: int = 0
    hand_size: int = 6
    queue_length: int = 50
    #: vital to the cluster: may use the last tenth of everything that is shared
    vital: bool = False

    @property
    def standing(self) -> Standing:
        """The level's place among those that share something (``kit.shares``)."""
        return "exempt" if self.exempt else "vital" if self.vital else "ordinary"

    @property
    def queue_capacity(self) -> int:
        """Number of requests that may wait for a seat."""
        return self.queues * self.queue_length

    @property
    def flow_queue_capacity(self) -> int:
        return self.hand_size * self.queue_length


class Subject(msgspec.Struct, frozen=True):
    """A user or group by its name, or the ServiceAccount *name* of *namespace*."""

    kind: Literal["User", "Group", "ServiceAccount"]
    name: str
    namespace: str = ""


class ResourceRule(msgspec.Struct, frozen=True, kw_only=True):
    verbs: tuple[str, ...] = (ANY,)
    groups: tuple[str, ...] = (ANY,)
    #: ``pods`` or ``pods/status``
    resources: tuple[str, ...] = (ANY,)
    namespaces: tuple[str, ...] = (ANY,)
    #: matches what names no namespace
    cluster_scope: bool = True


class PathRule(msgspec.Struct, frozen=True, kw_only=True):
    verbs: tuple[str, ...] = (ANY,)
    #: whole paths, or those below one that ends in ``/*``
    paths: tuple[str, ...] = (ANY,)


class Schema(msgspec.Struct, frozen=True, kw_only=True):
    """A flow schema: which requests are its own, and how they are told apart into flows."""

    name: str
    level: str
    precedence: int
    distinguisher: Literal["", "ByUser", "ByNamespace"] = ""
    subjects: tuple[Subject, ...]
    resource_rules: tuple[ResourceRule, ...] = (ResourceRule(),)
    path_rules: tuple[PathRule, ...] = (PathRule(),)


class RequestAttributes(NamedTuple):
    """The attributes of a request that rules match; ``resource`` is "" if it is for a page, which
    ``path`` names.
    """

    verb: str
    group: str = ""
    resource: str = ""
    namespace: str = ""
    path: str = ""


class Flow(NamedTuple):
    """Requests of one schema that stand in line together."""

    schema: Schema
    level: Level
    distinguisher: str


@lru_cache(maxsize=64)
def uid_of(kind: Literal["flowschema", "prioritylevel"], name: str) -> str:
    """Answers name the schema and the level in headers, and the objects carry the same uid, on
    every server that shares a storage and without asking it: so it is made of the name, in the form
    of a version 4 UUID.
    """
    digits = hashlib.sha256(f"{kind}/{name}".encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:32]}"
