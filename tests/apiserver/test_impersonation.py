"""Acting as somebody else is refused, never passed over: the request would run with the wrong rights."""

from __future__ import annotations

import pytest
from tests.apiserver.serving import Server

REFUSED = (
    'users "jane" is forbidden: User "sliceplane-admin" cannot impersonate resource "users" in API group "" at the '
    "cluster scope"
)


@pytest.mark.parametrize(
    ("headers", "code", "message"),
    [
        (
            {"Impersonate-User": "jane"},
            403,
            REFUSED,
        ),
        ({"Impersonate-Group": "g"}, 400, "requested [impersonate-group] without impersonating a user"),
    ],
)
def test_refused(server: Server, headers: dict[str, str], code: int, message: str) -> None:
    answer = server.get("/api/v1/namespaces", **headers)
    assert answer.code == code
    assert answer.json["message"] == message
