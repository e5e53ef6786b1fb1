"""What is not ours to keep: content of ConfigMaps, values of environment variables, annotations of other programs.

A value is replaced by a token that is the same for the same value, within one recorder: a controller that copies or
compares it does so in a replay, too.  *salt* is chosen by the process and not kept, so a token does not tell the value.
A token is its own token, so a replay, which has no other values, makes the same tokens.

A write is told apart by the digest of its body as it is after that.  A body with environment variables is an exception:
names are derived from a hash of the template, which tokens change; of it verb, resource and namespace count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import compress, count
from operator import is_not
from typing import Any, Final
from zlib import crc32

import msgspec

from sliceplane.api.discovery import ANNOTATION_TRIGGER_TIME
from sliceplane.api.requests import Write
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Secrets

TOKEN: Final = "~not-recorded:"
#: annotations under these domains are part of the API, and controllers act on them
_OURS: Final = ("kubernetes.io", "k8s.io", "sliceplane.dev")
#: but for what kubectl keeps there: the whole object, environment included
_THEIRS: Final = ("kubectl.kubernetes.io",)
#: an object of plain strings
_ANNOTATIONS: Final = re.compile(rb'"annotations":(\{(?:"(?:[^"\\]|\\.)*":"(?:[^"\\]|\\.)*",?)*\})')
_BEFORE_ANNOTATIONS: Final = b'"annotations":{'
#: the one that slices have, and how long its value may be
_TRIGGER_TIME: Final = f'"{ANNOTATION_TRIGGER_TIME}":"'.encode()
_TIME_BYTES_MAX: Final = 40
_ENVIRONMENT: Final = b'"env":['
_ENDPOINTS: Final = b'"endpoints":['
_AFTER_ENDPOINTS: Final = b'],"ports":'
#: where more endpoints differ, the whole body is no more work
_MOVED_MAX: Final = 16
_decode_annotations = msgspec.json.Decoder(dict[str, str])


class Redactor:
    """Owned by one recorder, or one replay."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        #: annotation -> whether its value is kept.  Bounded: it begins anew when there are too many
        self._kept: dict[str, bool] = {}

    def token(self, value: str) -> str:
        if value.startswith(TOKEN):
            return value
        return TOKEN + hashlib.blake2b(value.encode(), key=self._salt, digest_size=6).hexdigest()

    def annotations(self, annotations: dict[str, str] | None) -> dict[str, str] | None:
        if not annotations:
            return annotations
        keeps = self._keeps
        if all(map(keeps, annotations)):
            return annotations
        return {name: value if keeps(name) else self.token(value) for name, value in annotations.items()}

    def _keeps(self, name: str) -> bool:
        kept = self._kept.get(name)
        if kept is None:
            domain = name.partition("/")[0]
            ours = any(domain == known or domain.endswith(f".{known}") for known in _OURS)
            if len(self._kept) > 4096:
                self._kept.clear()
            kept = self._kept[name] = ours and domain not in _THEIRS
        return kept

    def template(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """A pod template, or a whole document of a Pod or of a workload."""
        redacted: dict[str, Any] = self._walk(template)
        return redacted

    def _walk(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        made: dict[str, Any] = {}
        for name, member in value.items():
            if name == "annotations" and isinstance(member, dict):
                made[name] = self.annotations(member)
            elif name == "env" and isinstance(member, list):
                made[name] = [self._variable(variable) for variable in member]
            else:
                made[name] = self._walk(member)
        return made

    def _variable(self, variable: Any) -> Any:
        if isinstance(variable, dict) and isinstance(variable.get("value"), str):
            return {**variable, "value": self.token(variable["value"])}
        return variable

    def digest(self, write: Write, moved: Sequence[int] | None = None) -> int:
        """Equal writes have equal digests, in a replay too.

        *moved*: which of its ``parts`` are others than those of the write before.  Then the digest is of these and of
        what is around them, which with an equal write before tells as much.
        """
        body = write.body
        if moved is not None:
            head, tail = body.find(_ENDPOINTS), body.rfind(_AFTER_ENDPOINTS)
            made = crc32(self._plain(body[:head], once=True), crc32(body[tail:]))
            if moved:
                changed = list(write.parts)
                for at in moved:
                    made = crc32(changed[at], made ^ at)
            return made
        resource = write.resource
        named = f"{write.verb} {resource.key} {write.namespace}"
        if resource is ConfigMaps or resource is Secrets:
            body = _without_data(body)
        elif resource is EndpointSlices:
            body = self._plain(body, once=True)
        elif body:
            if _ENVIRONMENT in body:
                return crc32(named.encode())
            body = self._plain(body)
        kind = write.patch_type if write.verb == "patch" else ""
        rest = f"{named}/{write.name}/{write.subresource} {kind} {write.label_selector}"
        return crc32(body, crc32(rest.encode()))

    def _plain(self, body: bytes, *, once: bool = False) -> bytes:
        """*body* with tokens for annotations of others.  *once*: there is one place for annotations in it."""
        at = body.find(_BEFORE_ANNOTATIONS)
        while at >= 0:
            if once and _is_trigger_time_alone(body, at + len(_BEFORE_ANNOTATIONS)):
                break
            match = _ANNOTATIONS.match(body, at)
            after = at + len(_BEFORE_ANNOTATIONS)
            if match is not None:
                replaced = self._replaced(match)
                if replaced != match[0]:
                    body = body[:at] + replaced + body[match.end() :]
                after = at + len(replaced)
            if once:
                break
            at = body.find(_BEFORE_ANNOTATIONS, after)
        return body

    def _replaced(self, match: re.Match[bytes]) -> bytes:
        annotations = _decode_annotations.decode(match[1])
        redacted = self.annotations(annotations)
        return match[0] if redacted is annotations else b'"annotations":' + msgspec.json.encode(redacted)


def _is_trigger_time_alone(body: bytes, at: int) -> bool:
    start = at + len(_TRIGGER_TIME)
    end = body.find(b'"', start, start + _TIME_BYTES_MAX)
    return end > 0 and body.startswith(_TRIGGER_TIME, at) and body.startswith(b"}", end + 1)


def moved_parts(old: Collection[bytes], new: Collection[bytes]) -> list[int] | None:
    """Positions at which two slices have other endpoints; ``None``: too many of them, or not as many in both."""
    if len(old) != len(new) or not new:
        return None
    suspects = list(compress(count(), map(is_not, old, new)))
    if not suspects:
        return suspects
    if len(suspects) > _MOVED_MAX:
        return None
    olds, news = list(old), list(new)
    return [at for at in suspects if olds[at] != news[at]]


def _without_data(body: bytes) -> bytes:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return b""
    if isinstance(document, list):  # a JSON patch
        return msgspec.json.encode([(step.get("op"), step.get("path")) for step in document])
    kept = {name: document[name] for name in document if name not in ("data", "binaryData", "stringData")}
    return msgspec.json.encode(kept)
