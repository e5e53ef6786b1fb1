"""Accept headers to representations."""

from __future__ import annotations

import pytest

from sliceplane.api.errors import StatusError
from sliceplane.server.io.requests.response import Representation, negotiate

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
KNOWN = (
    "only the following media types are accepted: application/json, application/yaml, "
    "application/vnd.kubernetes.protobuf"
)
UNKNOWN = (
    "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, "
    "application/vnd.kubernetes.protobuf"
)

ACCEPTED = [
    ("", Representation()),
    ("*/*", Representation()),
    ("application/json", Representation()),
    ("application/json; charset=utf-8;foo=bar", Representation()),
    ("application/json;pretty=1", Representation(pretty=True)),
    ("application/yaml", Representation(media="yaml")),
    ("application/vnd.kubernetes.protobuf, */*", Representation(media="protobuf")),
    ("application/vnd.kubernetes.protobuf,application/json", Representation(media="protobuf")),
    ("application/yaml;q=0.5, application/json;q=0.9", Representation()),
    ("application/json;q=0, application/yaml", Representation(media="yaml")),
    ("text/html, application/yaml", Representation(media="yaml")),
    ("*/*, application/yaml", Representation(media="yaml")),
    (TABLE, Representation(form="Table")),
    (
        f"{TABLE},{TABLE.replace('v=v1', 'v=v1beta1')},application/json",
        Representation(form="Table"),
    ),
    (TABLE.replace("v=v1", "v=v1beta1"), Representation(form="Table", form_version="v1beta1")),
    (f"{TABLE.replace('v=v1', 'v=v9')},application/json", Representation()),
    (
        "application/json;g=meta.k8s.io;as=PartialObjectMetadata;v=v1",
        Representation(form="PartialObjectMetadata"),
    ),
    (
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        Representation(media="protobuf", form="PartialObjectMetadataList"),
    ),
]


@pytest.mark.parametrize(("accept", "expected"), ACCEPTED)
def test_accepted(accept: str, expected: Representation) -> None:
    assert negotiate(accept) == expected


REFUSED = [
    ("application/*", UNKNOWN),
    ("text/html", UNKNOWN),
    ("Application/JSON", UNKNOWN),
    ("application/cbor", UNKNOWN),
    (TABLE.replace("v=v1", "v=v2"), KNOWN),
    (TABLE.replace("as=Table", "as=Chair"), KNOWN),
    ("application/json;g=meta.k8s.io;v=v1", KNOWN),
    ("application/json;stream=watch", KNOWN),
]


@pytest.mark.parametrize(("accept", "message"), REFUSED)
def test_refused(accept: str, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        negotiate(accept)
    assert (caught.value.code, caught.value.reason, caught.value.message) == (
        406,
        "NotAcceptable",
        message,
    )
    assert ("details" in caught.value.status()) == (message == UNKNOWN)


def test_watches() -> None:
    assert negotiate("application/json;stream=watch", watch=True) == Representation()
    binary = negotiate("application/vnd.kubernetes.protobuf;stream=watch,*/*", watch=True)
    assert binary.watch_content_type == b"application/vnd.kubernetes.protobuf;stream=watch"
    assert negotiate("application/json;pretty=1", watch=True, pretty=True) == Representation()
    with pytest.raises(StatusError, match="json;stream=watch, application/vnd"):
        negotiate("application/yaml", watch=True)
