"""The audit log: what is told of each request, and a file that rotates, is private and never holds
anybody up.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.audit import file as audit_file
from sliceplane.server.io.audit.log import AuditConfig, AuditLog
from sliceplane.server.io.plane import PlaneConfig

SERVICES = "/api/v1/namespaces/default/services"
MICROS = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Audited:
    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path

    def events(self, audit_id: str, count: int) -> list[dict[str, Any]]:
        """The events of one request; waits for *count* of them."""

        def events() -> list[dict[str, Any]]:
            whole, _, _ = self.path.read_text().rpartition("\n")  # the last line may be under way
            written = [json.loads(line) for line in whole.splitlines()]
            return [event for event in written if event["auditID"] == audit_id]

        mine = until(events, lambda events: len(events) >= count)
        assert len(mine) == count
        return mine


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    tokens, path = folder / "tokens.csv", folder / "audit.log"
    tokens.write_text("tb,bob,ub\n")
    config = PlaneConfig(
        data_dir="memory:", secure_port=0, token_auth_file=tokens, audit=AuditConfig(path=path)
    )
    plane, end = run_plane(config)
    yield Audited(Server(plane), path)
    end()


def test_a_create_is_received_and_completed(audited: Audited) -> None:
    body = {"metadata": {"generateName": "web-"}, "spec": {"ports": [{"port": 80}]}}
    reply = audited.server.request(
        "POST", f"{SERVICES}?dryRun=All&pretty=0", body, user_agent="tester"
    )
    received, complete = audited.events(reply.headers["Audit-Id"], 2)
    assert list(received) == [
        "kind",
        "apiVersion",
        "level",
        "auditID",
        "stage",
        "requestURI",
        "verb",
        "user",
        "sourceIPs",
        "userAgent",
        "objectRef",
        "requestReceivedTimestamp",
        "stageTimestamp",
    ]
    assert (received["kind"], received["apiVersion"], received["level"]) == (
        "Event",
        "audit.k8s.io/v1",
        "Metadata",
    )
    assert (received["stage"], complete["stage"]) == ("RequestReceived", "ResponseComplete")
    assert received["requestURI"] == f"{SERVICES}?dryRun=All&pretty=0"
    assert r"?dryRun=All\u0026pretty=0" in audited.path.read_text()
    assert (received["verb"], received["sourceIPs"], received["userAgent"]) == (
        "create",
        ["127.0.0.1"],
        "tester",
    )
    assert "system:masters" in received["user"]["groups"]
    assert received["objectRef"] == {
        "resource": "services",
        "namespace": "default",
        "apiVersion": "v1",
    }
    assert complete["objectRef"] == {
        **received["objectRef"],
        "name": reply.json["metadata"]["name"],
    }
    assert complete["responseStatus"] == {"metadata": {}, "code": 201}
    assert complete["annotations"] == {
        "authorization.k8s.io/decision": "allow",
        "authorization.k8s.io/reason": "",
    }
    assert MICROS.fullmatch(complete["stageTimestamp"])
    assert complete["requestReceivedTimestamp"] == received["requestReceivedTimestamp"]
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600


def test_a_refusal_tells_why(audited: Audited) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/x"
    reply = audited.server.request("GET", path, certificate=False, authorization="Bearer tb")
    received, complete = audited.events(reply.headers["Audit-Id"], 2)
    assert received["user"] == {"username": "bob", "uid": "ub", "groups": ["system:authenticated"]}
    assert received["objectRef"] == {
        "resource": "endpointslices",
        "namespace": "default",
        "name": "x",
        "apiGroup": "discovery.k8s.io",
        "apiVersion": "v1",
    }
    assert complete["annotations"]["authorization.k8s.io/decision"] == "forbid"
    status = complete["responseStatus"]
    assert (status["status"], status["reason"], status["code"]) == ("Failure", "Forbidden", 403)
    assert status["message"] == reply.json["message"]
    assert status["details"] == reply.json["details"]


def test_nobody_in_particular(audited: Audited) -> None:
    reply = audited.server.request(
        "GET", "/version", certificate=False, authorization="Bearer nope"
    )
    (event,) = audited.events(reply.headers["Audit-Id"], 1)
    assert (event["stage"], event["user"], event["responseStatus"]["code"]) == (
        "ResponseStarted",
        {},
        401,
    )
    assert "tb" not in json.dumps(event)
    reply = audited.server.request("GET", "/version", certificate=False)
    _, complete = audited.events(reply.headers["Audit-Id"], 2)
    assert (complete["verb"], complete["user"]["username"]) == ("get", "system:anonymous")
    assert "objectRef" not in complete
    assert complete["annotations"]["authorization.k8s.io/reason"].startswith(
        "RBAC: allowed by ClusterRoleBinding"
    )


def test_a_watch_has_a_start(audited: Audited) -> None:
    reply = audited.server.get(f"{SERVICES}?watch=1&timeoutSeconds=1")
    events = audited.events(reply.headers["Audit-Id"], 3)
    assert [event["stage"] for event in events] == [
        "RequestReceived",
        "ResponseStarted",
        "ResponseComplete",
    ]
    assert {event["verb"] for event in events} == {"watch"}
    assert events[1]["responseStatus"] == {"metadata": {}, "code": 200}


def test_the_file_rotates_and_old_ones_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(AuditConfig(path=path, size_max=100, backups_max=2), lambda: 1_800_000_000.0)
    for number in range(40):
        log.write({"number": number, "padding": "x" * 20})
    log.close()
    backups = sorted(tmp_path.glob("audit-*.log"))
    assert backups[0].name.startswith("audit-2027-01-15T08-00-00.")
    assert len(backups) == 2
    kept = [
        json.loads(line)["number"]
        for file in [*backups, path]
        for line in file.read_text().splitlines()
    ]
    assert kept == list(range(40 - len(kept), 40)), "the newest, in order, none lost"
    assert all(
        file.stat().st_size <= 100 and stat.S_IMODE(file.stat().st_mode) == 0o600
        for file in [*backups, path]
    )
    assert log.lost == 0


def test_a_log_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in range(2):
        log = AuditLog(AuditConfig(path=path), time.time)
        log.write({"number": number})
        log.close()
    assert path.read_text() == '{"number":0}\n{"number":1}\n'


def test_a_disk_that_fails_loses_lines_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "audit.log", os.write
    log = AuditLog(AuditConfig(path=path), time.time)

    def full(fd: int, data: bytes) -> int:
        if len(data) > 4:
            return real(fd, data[:4])  # half a line is what a disk that fills up takes
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(audit_file.os, "write", full)
        log.write({"a": 1})
        until(lambda: log.lost)
    log.write({"a": 2})
    log.close()
    assert log.lost == 1
    assert path.read_text().splitlines()[-1] == '{"a":2}', "not glued to the half of another"


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(AuditConfig(path=path, size_max=60), time.time)
    for number in range(8):
        log.write({"number": number, "padding": "x" * 20})
        if number == 3:
            # Between the renaming of the old file and the opening of the new one there is none.
            until(path.read_text, lambda text: '"number":3' in text, ignoring=(FileNotFoundError,))
            path.unlink()
    log.close()
    assert log.lost == 0
    assert '"number":7' in path.read_text()


def test_a_file_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"cannot open the audit log .*: is a directory"):
        AuditLog(AuditConfig(path=tmp_path), time.time)
