"""Redaction: the parts of objects that a recording must not keep, replaced by tokens.

Replaced are: content of ConfigMaps, annotations that no controller reads, messages of Events, and
every text of a Pod template that ``templates`` does not list (arguments, commands, hooks, probes,
values of variables, sources of volumes). Content of Secrets is in no projection, so no recorder is
ever handed it.

A token is the same for the same value within one recorder: a controller that copies or compares the
value does so in a replay, too. *salt* is chosen by the process at random and not kept, so no
dictionary finds the value of a token. A token is its own token, so a replay, which has no other
values, makes the same tokens.

A write is told apart by the digest of its redacted body. A body with a template of which something
is hidden is an exception: names and labels are derived from a hash of the template, which tokens
change; of such a write verb, resource and namespace count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

import msgspec

from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    ANNOTATION_OVER_CAPACITY,
    ANNOTATION_TRIGGER_TIME,
)
from sliceplane.api.requests import Write
from sliceplane.api.scheme import (
    ConfigMaps,
    ControllerRevisions,
    DaemonSets,
    Deployments,
    EndpointSlices,
    Pods,
    PodTemplates,
    ReplicaSets,
    ReplicationControllers,
    Secrets,
    StatefulSets,
)
from sliceplane.watch.recorder.templates import TemplateWalk

TOKEN: Final = "~not-recorded:"
_DIGEST_BYTES: Final = 6
_TOKEN_CHARACTERS: Final = len(TOKEN) + 2 * _DIGEST_BYTES
#: annotations that controllers read, and times; others are text of users and of other programs: a
#: proxy's configuration snippets, load balancers' keys, kubectl's copy of the whole object
KEPT_ANNOTATIONS: Final = frozenset(
    (
        ANNOTATION_LEADER,
        ANNOTATION_OVER_CAPACITY,
        ANNOTATION_TRIGGER_TIME,
        "controller.kubernetes.io/pod-deletion-cost",
        "deployment.kubernetes.io/desired-replicas",
        "deployment.kubernetes.io/max-replicas",
        "deployment.kubernetes.io/revision",
        "deployment.kubernetes.io/revision-history",
        "kubectl.kubernetes.io/restartedAt",
        "service.kubernetes.io/topology-aware-hints",
        "service.kubernetes.io/topology-mode",
    )
)
#: whose annotations are those of this program
_OWN_DOMAIN: Final = "sliceplane.dev"
#: an object of plain strings
_ANNOTATIONS: Final = re.compile(rb'"annotations":(\{(?:"(?:[^"\\]|\\.)*":"(?:[^"\\]|\\.)*",?)*\})')
_BEFORE_ANNOTATIONS: Final = b'"annotations":{'
#: the one that slices have, and how long its value may be
_TRIGGER_TIME: Final = f'"{ANNOTATION_TRIGGER_TIME}":"'.encode()
_TIME_BYTES_MAX: Final = 40
#: kinds that hold a Pod template, or are made of one
_TEMPLATED: Final = frozenset(
    resource.key
    for resource in (
        Pods,
        PodTemplates,
        ReplicationControllers,
        ReplicaSets,
        Deployments,
        StatefulSets,
        DaemonSets,
    )
)
#: no body without one of these has a template
_TEMPLATE_MEMBERS: Final = (b'"spec"', b'"template"', b'"data"')
_decode_annotations = msgspec.json.Decoder(dict[str, str])


class Redactor:
    """Owned by one recorder, or one replay."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._walk = TemplateWalk(self.token, self.annotations)
        #: annotation -> whether its value is kept.  Bounded: it begins anew when there are too many
        self._kept: dict[str, bool] = {}

    def token(self, value: str) -> str:
        if value.startswith(TOKEN) and len(value) == _TOKEN_CHARACTERS:
            return value
        digest = hashlib.blake2b(value.encode(), key=self._salt, digest_size=_DIGEST_BYTES)
        return TOKEN + digest.hexdigest()

    def annotations(self, annotations: dict[str, str] | None) -> dict[str, str] | None:
        if not annotations:
            return annotations
        keeps = self._keeps
        if all(map(keeps, annotations)):
            return annotations
        return {
            name: value if keeps(name) else self.token(value) for name, value in annotations.items()
        }

    def _keeps(self, name: str) -> bool:
        kept = self._kept.get(name)
        if kept is None:
            domain = name.partition("/")[0]
            if len(self._kept) > 4096:
                self._kept.clear()
            own = domain == _OWN_DOMAIN or domain.endswith(f".{_OWN_DOMAIN}")
            kept = self._kept[name] = own or name in KEPT_ANNOTATIONS
        return kept

    def template(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """A Pod template, or the metadata and spec of a Pod."""
        return self._walk.template(template)

    def revision(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of a ControllerRevision."""
        return self._walk.revision(data)

    def _hides(self, write: Write) -> bool:
        """Returns True if the body has a template of which something is hidden, or cannot be read
        as one.
        """
        resource, body = write.resource, write.body
        if resource is not ControllerRevisions and resource.key not in _TEMPLATED:
            return False
        if not any(member in body for member in _TEMPLATE_MEMBERS):
            return False
        try:
            document = msgspec.json.decode(body)
        except msgspec.DecodeError:
            return True
        if not isinstance(document, dict):  # a JSON patch
            return True
        if resource is ControllerRevisions:
            data = document.get("data")
            return data is not None and _has_token(
                self.revision(data) if isinstance(data, dict) else self.token("")
            )
        if resource is Pods:
            return _has_token(self.template({"spec": document.get("spec")}))
        spec = document if resource is PodTemplates else document.get("spec")
        template = spec.get("template") if isinstance(spec, dict) else None
        return isinstance(template, dict) and _has_token(self.template(template))

    def digest(self, write: Write) -> int:
        """Equal writes have equal digests, in a replay too."""
        body = write.body
        resource = write.resource
        named = f"{write.verb} {resource.key} {write.namespace}"
        if resource is ConfigMaps or resource is Secrets:
            body = _without_data(body)
        elif resource is EndpointSlices:
            body = self._plain(body, at_most_one=True)
        elif body:
            if self._hides(write):
                return crc32(named.encode())
            body = self._plain(body)
        kind = write.patch_type if write.verb == "patch" else ""
        rest = f"{named}/{write.name}/{write.subresource} {kind} {write.label_selector}"
        return crc32(body, crc32(rest.encode()))

    def _plain(self, body: bytes, *, at_most_one: bool = False) -> bytes:
        """*body* with tokens for annotations of others.  *at_most_one*: it has at most one
        member ``annotations``.
        """
        at = body.find(_BEFORE_ANNOTATIONS)
        while at >= 0:
            if at_most_one and _is_trigger_time_alone(body, at + len(_BEFORE_ANNOTATIONS)):
                break
            match = _ANNOTATIONS.match(body, at)
            after = at + len(_BEFORE_ANNOTATIONS)
            if match is not None:
                replaced = self._replaced(match)
                if replaced != match[0]:
                    body = body[:at] + replaced + body[match.end() :]
                after = at + len(replaced)
            if at_most_one:
                break
            at = body.find(_BEFORE_ANNOTATIONS, after)
        return body

    def _replaced(self, match: re.Match[bytes]) -> bytes:
        annotations = _decode_annotations.decode(match[1])
        redacted = self.annotations(annotations)
        return (
            match[0]
            if redacted is annotations
            else b'"annotations":' + msgspec.json.encode(redacted)
        )


def _is_trigger_time_alone(body: bytes, at: int) -> bool:
    start = at + len(_TRIGGER_TIME)
    end = body.find(b'"', start, start + _TIME_BYTES_MAX)
    return end > 0 and body.startswith(_TRIGGER_TIME, at) and body.startswith(b"}", end + 1)


def _has_token(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_token, value)) or any(map(_has_token, value.values()))
    if isinstance(value, list):
        return any(map(_has_token, value))
    return isinstance(value, str) and value.startswith(TOKEN)


def _without_data(body: bytes) -> bytes:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return b""
    if isinstance(document, list):  # a JSON patch
        return msgspec.json.encode([(step.get("op"), step.get("path")) for step in document])
    kept = {
        name: document[name]
        for name in document
        if name not in ("data", "binaryData", "stringData")
    }
    return msgspec.json.encode(kept)
