"""Requests that nobody means well with: each gets a Status that blames the client, and none is
logged as our fault.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from tests.server.serving import Server

from sliceplane.server.io.requests import app

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def nothing_unexpected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No request may reach the last resort."""
    log = Mock()
    monkeypatch.setattr(app, "_log", log)
    yield
    log.error.assert_not_called()


def _token(**fields: Any) -> str:
    return _raw_token(json.dumps(fields).encode())


def _raw_token(text: bytes) -> str:
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize(
    ("query", "code", "message"),
    [
        ("labelSelector=%ff", 400, "unable to parse requirement"),
        ("fieldSelector=%ff", 400, "can't understand"),
        ("fieldSelector=metadata.name%3D%ff", 200, ""),
        (f"limit={DIGITS}", 400, "value out of range"),
        ("limit=%D9%A3", 400, "invalid syntax"),
        (f"resourceVersion={DIGITS}", 400, "invalid resource version: "),
        (f"timeoutSeconds={DIGITS}&watch=1", 400, "value out of range"),
        (f"watch=1&resourceVersion={DIGITS}", 500, "value out of range"),
        (f"continue={_raw_token(b'[' * 5000)}", 400, "invalid continue token"),
        (
            f"continue={_token(v='meta.k8s.io/v1', rv=1, start='../' + chr(0xD800))}",
            400,
            "invalid continue token",
        ),
        ("continue=%C3%A9", 400, "invalid continue token"),
    ],
)
def test_queries(server: Server, query: str, code: int, message: str) -> None:
    reply = server.get(f"{CONFIG_MAPS}?{query}")
    assert (reply.code, message in reply.json.get("message", "")) == (code, True), reply.body[:300]


def test_include_object_that_is_no_text(server: Server) -> None:
    reply = server.get(
        f"{CONFIG_MAPS}?includeObject=%ff", Accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    )
    assert reply.code == 400
    assert "must be 'Metadata', 'Object', 'None', or empty" in reply.json["message"]


def test_field_manager_that_is_no_text_is_a_name_like_another(server: Server) -> None:
    assert (
        server.request(
            "POST", f"{CONFIG_MAPS}?fieldManager=%ff", {"metadata": {"name": "manager"}}
        ).code
        == 201
    )


@pytest.mark.parametrize(
    "query", [f"gracePeriodSeconds={DIGITS}", "gracePeriodSeconds=x", "propagationPolicy=%ff"]
)
def test_delete_options_in_the_query(server: Server, query: str) -> None:
    reply = server.request("DELETE", f"{CONFIG_MAPS}/none?{query}")
    assert reply.code in (400, 422), reply.body
    assert reply.json["kind"] == "Status"


def test_resource_versions_in_bodies(server: Server) -> None:
    server.request("POST", CONFIG_MAPS, {"metadata": {"name": "versions"}})
    for version in (DIGITS, "abc"):
        body = {"metadata": {"name": "versions", "resourceVersion": version}}
        reply = server.request("PUT", f"{CONFIG_MAPS}/versions", body)
        # As upstream: 500 without a reason here.
        assert reply.code == 500
        assert "strconv.ParseUint: parsing" in reply.json["message"]
        assert "reason" not in reply.json


@pytest.mark.parametrize("directive", [[], {}, ["a"], {"$patch": "delete"}, 1, True, "bad"])
def test_patch_directives_of_any_type(server: Server, directive: Any) -> None:
    body = {"metadata": {"name": "directives"}, "addressType": "IPv4", "ports": [], "endpoints": []}
    server.request("POST", SLICES, body)
    for patch in (
        {"$patch": directive},
        {"metadata": {"$patch": directive}},
        {"endpoints": [{"addresses": ["10.0.0.1"], "$patch": directive}]},
        {"metadata": {"ownerReferences": [{"uid": "x", "$patch": directive}]}},
    ):
        reply = server.request(
            "PATCH",
            f"{SLICES}/directives",
            patch,
            Content_Type="application/strategic-merge-patch+json",
        )
        # Kubernetes has no better code for these.
        assert reply.code == 500
        assert reply.json["message"].startswith("unknown patch type: ")
