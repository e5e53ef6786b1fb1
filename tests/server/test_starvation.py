"""An account that may do next to nothing against the others, over real sockets.

*hog* and *jane* are users of one priority level; hog attacks, and jane's requests go on.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.server.serving import Reply, Server, run_plane
from tests.waiting import until

from sliceplane.kit.io.tls.newcomers import ConnectionTiming
from sliceplane.server.fairness.types import uid_of
from sliceplane.server.io.config import Periods
from sliceplane.server.io.plane import PlaneConfig
from sliceplane.server.io.requests.limits import Limits

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
REVIEW = json.dumps({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}).encode()
FAR = 10**15


@contextmanager
def serving(folder: Path, limits: Limits, periods: Periods | None = None) -> Iterator[Server]:
    tokens = folder / "tokens.csv"
    tokens.write_text("hog-token,hog,1\njane-token,jane,2\n")
    config = PlaneConfig(data_dir="memory:", secure_port=0, limits=limits, token_auth_file=tokens)
    plane, end = run_plane(config, periods=periods)
    server = Server(plane)
    try:
        for user, role in (("hog", "view"), ("jane", "edit")):
            binding = {
                "metadata": {"name": user},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": role,
                },
                "subjects": [
                    {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
                ],
            }
            path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
            assert server.request("POST", path, binding).code == 201
        yield server
    finally:
        end()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("plane"), Limits()) as server:
        yield server


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Reads of a future version do not end while a test runs, however long that takes."""
    periods = Periods(future_version_s=3600.0, stop_grace_s=0.1)
    with serving(tmp_path_factory.mktemp("patient"), Limits(), periods) as server:
        yield server


def ask(server: Server, user: str, method: str, path: str, body: object = None) -> Reply:
    return server.request(
        method, path, body, certificate=False, Authorization=f"Bearer {user}-token"
    )


@contextmanager
def sent(server: Server, count: int, head: str, body: bytes = b"") -> Iterator[list[ssl.SSLSocket]]:
    """*count* requests of hog's, each on a connection of its own, that nobody reads the answers of
    yet.
    """
    context = server.context(certificate=False)
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            connection = server.connect(certificate=False)
            connection._context = context
            connection.connect()
            stack.callback(connection.close)
            head_bytes = f"{head}Host: plane\r\nAuthorization: Bearer hog-token\r\n\r\n".encode()
            connection.sock.sendall(head_bytes + body)
            sockets.append(connection.sock)
        yield sockets


def answer(connection: ssl.SSLSocket) -> bytes:
    """The beginning of the answer."""
    connection.settimeout(60)
    return connection.recv(100_000)


def refused(opened: list[ssl.SSLSocket], count: int) -> None:
    """So many of these are told that they are too many; the others, nothing."""
    heard = dict.fromkeys(opened, b"")

    def codes() -> list[bytes]:
        for connection, said in heard.items():
            connection.settimeout(0)
            with suppress(ssl.SSLWantReadError):
                heard[connection] = said or connection.recv(12)
        return sorted(said for said in heard.values() if said)

    assert until(codes, lambda said: len(said) >= count) == [b"HTTP/1.1 429"] * count


def bodies(length: int = len(REVIEW)) -> str:
    return (
        f"POST {REVIEWS} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    )


def shown(server: Server, name: str, **labels: str) -> float:
    """A figure of ``/metrics``."""
    for line in server.get("/metrics").body.decode().splitlines():
        found, _, value = line.rpartition(" ")
        if found.startswith(f"{name}{{") and all(
            f'{label}="{text}"' in found for label, text in labels.items()
        ):
            return float(value)
    raise AssertionError(f"there is no {name} of {labels}")


def held(server: Server, what: str) -> float:
    return shown(server, "sliceplane_shared_held", what=what)


def settle(server: Server, what: str, count: int) -> None:
    """Wait until requests hold so much."""
    until(lambda: held(server, what), lambda found: found == count)


def test_200_unfinished_bodies_of_one_account_keep_nobody_from_writing(server: Server) -> None:
    with sent(server, 200, bodies(), REVIEW[:20]) as opened:
        settle(server, "body-bytes", 200 * 16 * 1024)
        assert shown(server, "apiserver_current_inflight_requests", request_kind="mutating") == 0
        for number in range(50):
            document = {"metadata": {"name": f"jane-{number}"}, "data": {"a": "b"}}
            assert ask(server, "jane", "POST", CONFIG_MAPS, document).code == 201
        # Who sends the rest after all is served.
        opened[0].sendall(REVIEW[20:])
        assert answer(opened[0]).startswith(b"HTTP/1.1 201 ")
    settle(server, "body-bytes", 0)


def test_400_reads_of_a_future_version_leave_lists_to_others(patient: Server) -> None:
    server = patient
    path = f"{CONFIG_MAPS}?resourceVersion={FAR}"
    with sent(server, 400, f"GET {path} HTTP/1.1\r\n") as opened:
        admin = [server.get(CONFIG_MAPS).code for _ in range(112)]
        assert admin == [200] * 112
        assert [ask(server, "jane", "GET", CONFIG_MAPS).code for _ in range(20)] == [200] * 20
        refused(opened, 300)
        assert held(server, "future-reads") == 100
        watch = (
            f"{CONFIG_MAPS}?watch=1&resourceVersion={FAR}&sendInitialEvents=true"
            "&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        )
        told = ask(server, "hog", "GET", watch)
    assert (told.code, told.headers["Retry-After"]) == (429, "1")
    assert told.body == b"Too many requests, please try again later."
    assert told.headers["X-Kubernetes-Pf-Flowschema-Uid"] == uid_of("flowschema", "global-default")
    assert told.headers["X-Kubernetes-Pf-Prioritylevel-Uid"] == uid_of(
        "prioritylevel", "global-default"
    )
    assert b'sliceplane_shared_refused_total{what="future-reads"}' in server.get("/metrics").body


def test_reads_of_a_future_version_end_and_are_held_no_longer(server: Server) -> None:
    with sent(server, 5, f"GET {CONFIG_MAPS}?resourceVersion={FAR} HTTP/1.1\r\n") as opened:
        assert [answer(connection)[:12] for connection in opened] == [b"HTTP/1.1 504"] * 5
    settle(server, "future-reads", 0)


def test_large_bodies_of_one_account_leave_room_for_another(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(bodies_bytes_max=1_000_000)) as server:
        with sent(server, 6, bodies(200_000), b" " * 100_000) as opened:
            refused(opened, 2)
            big = {"metadata": {"name": "big"}, "data": {"a": "b" * 100_000}}
            assert ask(server, "jane", "POST", CONFIG_MAPS, big).code == 201
        settle(server, "body-bytes", 0)


def test_watches_of_one_account_leave_room_for_another(tmp_path: Path) -> None:
    with serving(tmp_path, Limits(watches_max=10)) as server:
        with sent(server, 9, f"GET {CONFIG_MAPS}?watch=1 HTTP/1.1\r\n") as opened:
            codes = [answer(each)[9:12] for each in opened]
            assert sorted(codes) == [b"200"] * 5 + [b"429"] * 4
            assert ask(server, "jane", "GET", f"{CONFIG_MAPS}?watch=1&timeoutSeconds=1").code == 200
        settle(server, "watches", 0)


def test_large_answers_that_one_account_does_not_take_leave_room_for_another(
    tmp_path: Path,
) -> None:
    patient = Periods(connections=ConnectionTiming(stalled_s=3600.0))
    with serving(tmp_path, Limits(unsent_bytes_max=30_000_000), patient) as server:
        for number in range(8):
            body = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * 900_000}}
            assert server.request("POST", CONFIG_MAPS, body).code == 201
        # Asked before hog does: an answer of jane's that is on its way leaves hog room for one
        # alone.
        size = len(ask(server, "jane", "GET", CONFIG_MAPS).body)
        settle(server, "unsent-bytes", 0)
        with sent(server, 2, f"GET {CONFIG_MAPS} HTTP/1.1\r\n"):
            settle(server, "unsent-bytes", 2 * size)
            assert ask(server, "hog", "GET", CONFIG_MAPS).code == 429
            assert ask(server, "jane", "GET", CONFIG_MAPS).code == 200


def test_figures_are_upstreams(server: Server) -> None:
    prefix = "apiserver_flowcontrol_"
    admin = {"priority_level": "exempt", "flow_schema": "exempt"}
    others = {"priority_level": "global-default", "flow_schema": "global-default"}
    assert shown(server, f"{prefix}nominal_limit_seats", priority_level="workload-low") == 246
    assert shown(server, f"{prefix}current_executing_requests", **admin) == 1
    assert shown(server, f"{prefix}current_inqueue_requests", **others) == 0
    before = shown(server, f"{prefix}dispatched_requests_total", **others)
    assert ask(server, "jane", "GET", CONFIG_MAPS).code == 200
    assert shown(server, f"{prefix}dispatched_requests_total", **others) == before + 1
    assert (
        shown(server, f"{prefix}request_wait_duration_seconds_count", execute="true", **others)
        == before + 1
    )
