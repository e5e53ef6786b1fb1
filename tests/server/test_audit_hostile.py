"""Who has no rights can neither fill the audit log, nor read Secrets in it, nor hold the server up
with it.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.kit.io import log as log_module
from sliceplane.kit.io.logs import output as log_output
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.audit.log import (
    LINE_BYTES_MAX,
    OMITTED_ANNOTATION,
    STRANGER_LINE_BYTES_MAX,
    STRANGERS_BURST,
    TRUNCATED,
    AuditConfig,
    AuditLog,
)
from sliceplane.server.io.audit.loggable import AGENT_CHARACTERS_MAX, error_of
from sliceplane.server.io.plane import PlaneConfig

SECRETS = "/api/v1/namespaces/default/secrets"
VALUE = "hunter2-of-the-secret"
ENCODED = base64.b64encode(VALUE.encode()).decode()


class Audited:
    def __init__(self, server: Server, path: Path, log: AuditLog, time_of_log: list[float]) -> None:
        self.server = server
        self.path = path
        self.log = log
        self._time = time_of_log

    def pass_time(self, seconds: float) -> None:
        """For the allowance of strangers, whose time stands still otherwise."""
        self._time[0] += seconds

    def events(self) -> list[dict[str, Any]]:
        assert self.log._writer.flush(30)
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def lines_of(self, audit_id: str) -> list[bytes]:
        """Both of one request; its answer may be there before the second."""

        def lines() -> list[bytes]:
            self.events()
            return [
                line for line in self.path.read_bytes().splitlines() if audit_id.encode() in line
            ]

        both = until(lines, lambda lines: len(lines) >= 2)
        assert len(both) == 2
        return both


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Audited]:
    made: list[AuditLog] = []
    now = [1000.0]
    real = AuditLog.__init__

    def init(self: AuditLog, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named, steady=lambda: now[0])
        made.append(self)

    monkeypatch.setattr(AuditLog, "__init__", init)
    tokens, path = tmp_path / "tokens.csv", tmp_path / "audit.log"
    tokens.write_text("tb,bob,ub\n")
    config = PlaneConfig(
        data_dir="memory:", secure_port=0, token_auth_file=tokens, audit=AuditConfig(path=path)
    )
    plane, end = run_plane(config)
    yield Audited(Server(plane), path, made[0], now)
    end()


def test_a_user_agent_of_any_length_does_not_evict_the_log(audited: Audited) -> None:
    reply = audited.server.request(
        "GET", "/api/v1/nodes", certificate=False, user_agent="<" * 60_000
    )
    assert reply.code == 403
    lines = audited.lines_of(reply.headers["Audit-Id"])
    for event in map(json.loads, lines):
        assert event["userAgent"].endswith("...TRUNCATED")
        assert event["annotations"][TRUNCATED] == "true"
    assert max(map(len, lines)) <= STRANGER_LINE_BYTES_MAX
    reply = audited.server.get("/api/v1/nodes", user_agent="a" * 60_000)
    known = json.loads(audited.lines_of(reply.headers["Audit-Id"])[0])
    assert known["userAgent"] == "a" * AGENT_CHARACTERS_MAX + "...TRUNCATED", "as upstream cuts it"


def test_a_path_of_any_length_does_not_either(audited: Audited) -> None:
    for certificate, bound in ((False, STRANGER_LINE_BYTES_MAX), (True, LINE_BYTES_MAX)):
        path = "/api/v1/namespaces/default/services/" + "a%22" * 8_000
        reply = audited.server.request("GET", path, certificate=certificate)
        assert reply.code in (403, 404)
        assert max(map(len, audited.lines_of(reply.headers["Audit-Id"]))) <= bound


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nope"}])
@pytest.mark.parametrize("path", ["/api/v1/nodes", "/version"])
def test_strangers_are_sampled_and_counted(
    audited: Audited, headers: dict[str, str], path: str
) -> None:
    connection = audited.server.connect(certificate=False)
    sent = STRANGERS_BURST + 60
    for _ in range(sent):
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
    asked = {event["auditID"] for event in audited.events() if event["requestURI"] == path}
    omitted = audited.log.omitted.value
    assert omitted == 60
    assert len(asked) + omitted == sent
    # A second later there is room again, and the next one tells how many are not there.
    audited.pass_time(1.0)
    connection.request("GET", path, headers=headers)
    connection.getresponse().read()
    connection.close()
    told = [
        event["annotations"][OMITTED_ANNOTATION]
        for event in audited.events()
        if OMITTED_ANNOTATION in event.get("annotations", {})
    ]
    assert sum(map(int, told)) == omitted
    metrics = audited.server.get("/metrics").body.decode()
    assert f"sliceplane_audit_left_out_requests_total {float(omitted)}" in metrics
    reply = audited.server.get("/api/v1/nodes")
    assert audited.lines_of(reply.headers["Audit-Id"]), "users are always told of"


def test_what_anonymous_users_may_do_is_always_told(audited: Audited) -> None:
    binding = {
        "metadata": {"name": "open"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [
            {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
        ],
    }
    reply = audited.server.request(
        "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding
    )
    assert reply.code == 201
    connection = audited.server.connect(certificate=False)
    for _ in range(STRANGERS_BURST + 20):
        connection.request("GET", "/api/v1/namespaces/default/services")
        assert connection.getresponse().read()
    connection.close()
    events = [
        event for event in audited.events() if event["user"].get("username") == "system:anonymous"
    ]
    assert len(events) == 2 * (STRANGERS_BURST + 20)
    assert [event["stage"] for event in events[:2]] == ["RequestReceived", "ResponseComplete"]


JSON_PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC, APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"


def _secret(**members: Any) -> bytes:
    return json.dumps(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, **members}
    ).encode()


@pytest.mark.parametrize(
    ("method", "content_type", "body"),
    [
        (
            "PATCH",
            JSON_PATCH,
            json.dumps([{"op": "add", "path": "/data/j", "value": "!"}]).encode(),
        ),
        (
            "PATCH",
            JSON_PATCH,
            json.dumps([{"op": "test", "path": "/data/k", "value": VALUE}]).encode(),
        ),
        ("PATCH", MERGE, json.dumps({"data": VALUE}).encode()),
        ("PATCH", MERGE, json.dumps({"data": {"k": VALUE + "!"}}).encode()),
        ("PATCH", STRATEGIC, json.dumps({"data": {"k": VALUE + "!"}}).encode()),
        ("PATCH", STRATEGIC, json.dumps({"data": {"$patch": VALUE}}).encode()),
        ("PATCH", APPLY, _secret(data=VALUE)),
        ("PATCH", APPLY, _secret(data={"k": [VALUE]})),
        ("PATCH", APPLY, f"data:\n  k: *{VALUE}\n".encode()),
        ("PUT", "application/json", _secret(data={"k": VALUE})),
        ("PUT", "application/json", _secret(type=f"x/{VALUE}", data={"k": ENCODED})),
        ("PUT", "application/json", _secret(stringData=[VALUE])),
        ("PUT", "application/yaml", f"data:\n  k: *{VALUE}\n".encode()),
        ("PUT", "application/json", _secret(metadata={"name": "s", "labels": {"a": VALUE + "!"}})),
    ],
)
def test_no_refusal_of_a_secret_tells_the_log_its_value(
    audited: Audited,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    content_type: str,
    body: bytes,
) -> None:
    monkeypatch.setattr(log_module, "_level", 10)
    assert (
        audited.server.request("POST", SECRETS, json.loads(_secret(data={"k": ENCODED}))).code
        == 201
    )
    path = f"{SECRETS}/s?fieldManager=a"
    reply = audited.server.request(method, path, body, content_type=content_type)
    assert reply.code in (400, 422, 500)
    complete = json.loads(audited.lines_of(reply.headers["Audit-Id"])[1])
    assert complete["stage"] == "ResponseComplete"
    assert complete["responseStatus"]["code"] == reply.code
    assert complete["responseStatus"].get("reason", "") == reply.json.get("reason", "")
    assert log_output.drain(5)
    for said in (audited.path.read_text(), capfd.readouterr().err):
        assert VALUE not in said
        assert ENCODED not in said


def test_no_credential_reaches_the_log(
    audited: Audited, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "_level", 10)
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": VALUE},
    }
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    for body in (review, {**review, "spec": {"token": [VALUE]}}, {**review, "spec": VALUE}):
        audited.server.request("POST", reviews, body)
    audited.server.request("GET", "/version", certificate=False, authorization=f"Bearer {VALUE}")
    audited.server.request("GET", f"/version?x=1&access_token={VALUE}&y=2")
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    assert audited.server.request("POST", accounts, {"metadata": {"name": "robot"}}).code == 201
    account = f"{accounts}/robot/token"
    answer = audited.server.request("POST", account, {"spec": {"expirationSeconds": 3600}})
    token = answer.json["status"]["token"]
    audited.server.request("GET", "/version", certificate=False, authorization=f"Bearer {token}")
    uris = {event["requestURI"] for event in audited.events()}
    assert "/version?x=1&access_token=REDACTED&y=2" in uris
    assert log_output.drain(5)
    for said in (audited.path.read_text(), capfd.readouterr().err):
        assert VALUE not in said
        assert token not in said
        assert token.rpartition(".")[2] not in said


def test_a_fault_of_ours_shows_where_and_not_what() -> None:
    def fault() -> None:
        raise KeyError(VALUE)

    with pytest.raises(KeyError) as caught:
        fault()
    assert error_of(caught.value, secret=False) is caught.value
    shown = error_of(caught.value, secret=True)
    assert VALUE not in str(shown)
    assert "KeyError" in str(shown)
    assert shown.__traceback__ is caught.value.__traceback__
    assert shown.__cause__ is None


def test_a_fifo_without_a_reader_does_not_keep_the_server_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "audit.fifo"
    os.mkfifo(path)
    began = time.monotonic()
    log = AuditLog(AuditConfig(path=path), time.time)
    assert time.monotonic() - began < 30
    for number in range(3):
        log.write({"number": number})
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert log._writer.flush(30), "it goes on when somebody reads"
    assert os.read(reader, 4096) == b'{"number":0}\n{"number":1}\n{"number":2}\n'
    log.close()
    os.close(reader)
    assert log.lost == 0


def test_a_fifo_that_no_one_ever_opens_does_not_keep_the_server_from_ending(tmp_path: Path) -> None:
    path = tmp_path / "audit.fifo"
    os.mkfifo(path)
    log = AuditLog(AuditConfig(path=path), time.time, close_s=0.2)
    began = time.monotonic()
    padding = "x" * 20_000
    for _ in range(1000):
        log.write({"padding": padding})
    log.close()
    assert time.monotonic() - began < 30
    assert 0 < log.lost < 1000, "the queue has a bound"
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # the thread may end


def test_a_full_device_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    mode = os.stat("/dev/full").st_mode
    log = AuditLog(AuditConfig(path=Path("/dev/full")), time.time)
    log.write({"a": 1})
    log.write({"a": 2})
    log.close()
    assert log.lost == 2
    assert os.stat("/dev/full").st_mode == mode, "only files are made private"
    with pytest.raises(StartError, match="no such file or directory"):
        AuditLog(AuditConfig(path=tmp_path / "no" / "audit.log"), time.time)
