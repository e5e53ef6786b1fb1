"""What a gRPC client may call a Service, and names that Envoy finds again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.consume.model import ServiceKey
from sliceplane.xds.names import (
    GrpcTarget,
    PortKey,
    collection,
    collection_of,
    parse_key,
    parse_target,
)

WEB = ServiceKey("default", "web")
DOMAINS = ("cluster.local",)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("web.default:80", GrpcTarget(WEB, "80")),
        ("web.default", GrpcTarget(WEB, "")),
        ("web.default.svc:http", GrpcTarget(WEB, "http")),
        ("web.default.svc.cluster.local:80", GrpcTarget(WEB, "80")),
        ("web.default.svc.cluster.local.:80", GrpcTarget(WEB, "80")),
        ("Web.Default:80", GrpcTarget(WEB, "80")),
        ("web:80", GrpcTarget(ServiceKey("own", "web"), "80")),
        ("web.default.svc.other.domain:80", None),
        ("web.default.pod", None),
        ("10.0.0.1:80", None),
        ("xdstp://a/b", None),
        ("-web.default", None),
        ("", None),
    ],
)
def test_a_name_of_any_spelling_is_the_service_it_means(
    name: str, target: GrpcTarget | None
) -> None:
    assert parse_target(name, "own", DOMAINS) == target


def test_a_short_name_of_a_client_without_namespace_names_nothing() -> None:
    assert parse_target("web:80", "", DOMAINS) is None


def test_a_key_is_read_as_it_is_written() -> None:
    assert parse_key("default/web:http") == PortKey(WEB, "http")
    assert [
        parse_key(name) for name in ("default/web", "web:80", "A/web:80", "default/web:80/x")
    ] == [None] * 4


@given(st.text(max_size=20))
def test_collections_have_only_octets_that_envoy_does_not_escape(process: str) -> None:
    glob = collection(f"{process}-1")
    assert re.fullmatch(r"xdstp://[A-Za-z0-9._/-]+/\*", glob)
    assert collection_of(f"{glob[:-1]}1f") == glob
    assert collection_of("default/web:80") == ""
