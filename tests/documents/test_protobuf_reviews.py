"""Questions about access in protobuf: what is read is what was written, by kinds that clients send
so.
"""

from __future__ import annotations

import pytest

from sliceplane.api.meta import Document
from sliceplane.server.documents.protobuf import decode, encode

SPEC = {
    "resourceAttributes": {"namespace": "n", "verb": "get", "resource": "pods"},
    "user": "u",
    "groups": ["a", "b"],
    "extra": {"scopes": ["x", "y"]},
    "uid": "7",
}
AUTHORIZATION = "authorization.k8s.io/v1"
AUTHENTICATION = "authentication.k8s.io/v1"
USER = {"username": "u", "groups": ["g"], "extra": {"k": ["v"]}}
DOCUMENTS: list[Document] = [
    {
        "kind": "SubjectAccessReview",
        "apiVersion": AUTHORIZATION,
        "spec": SPEC,
        "status": {"allowed": True},
    },
    {
        "kind": "LocalSubjectAccessReview",
        "apiVersion": AUTHORIZATION,
        "spec": SPEC,
        "status": {"allowed": False},
    },
    {
        "kind": "TokenReview",
        "apiVersion": AUTHENTICATION,
        "spec": {"token": "t", "audiences": ["a"]},
        "status": {"authenticated": True, "user": USER, "audiences": ["a"]},
    },
    {
        "kind": "TokenRequest",
        "apiVersion": AUTHENTICATION,
        "spec": {
            "audiences": ["a"],
            "expirationSeconds": 600,
            "boundObjectRef": {"kind": "Pod", "name": "p"},
        },
        "status": {"token": "t", "expirationTimestamp": "2026-11-21T10:00:00Z"},
    },
]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"])
def test_there_and_back(document: Document) -> None:
    decoded = decode(encode(document), api_version=document["apiVersion"], kind=document["kind"])
    assert decoded["spec"] == document["spec"]
    assert decoded["status"] == document["status"]
