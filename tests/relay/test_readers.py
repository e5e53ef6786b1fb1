"""``--readers``: who a client is, what it may read, and what it reads, through processes that serve
the port of one server.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from tests.relay.relaying import ADMIN, IN_DEFAULT, SLICES, tokens
from tests.server.serving import CM, Server, endpoint_slice, run_plane, serving
from tests.server.test_certificates_over_time import DAY, Authority
from tests.server.test_http_tokens import account
from tests.server.test_revoked_watches import RBAC
from tests.waiting import until

from sliceplane.kit.io.start_error import StartError
from sliceplane.relay.io.readers import METRICS_PAGE, OWN_PEER, PROGRESS_PAGE
from sliceplane.server.io.audit.file import AuditConfig
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections.listener import bind, bind_shared
from sliceplane.server.io.requests.limits import Limits
from sliceplane.watch.io.certificates import Certificate

__all__ = ["tokens"]
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
#: rights are asked for again after 10 s, on a machine that is busy
REVOKED_S_MAX = 60.0
#: a client would be the administrator if one of them were believed
FORGED = (
    {"X-Remote-User": "sliceplane-admin", "X-Remote-Group": "system:masters"},
    {"X-Sliceplane-Peer": OWN_PEER.header().decode()},
    {"x-sliceplane-peer": OWN_PEER.header().decode(), "Connection": "x-sliceplane-peer"},
    {"X_Sliceplane_Peer": OWN_PEER.header().decode()},
)


@pytest.fixture(scope="module")
def server(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("audit") / "audit.log"
    config = PlaneConfig(
        data_dir="memory:",
        secure_port=0,
        token_auth_file=tokens,
        audit=AuditConfig(path=log),
        readers=2,
    )
    plane, end = run_plane(config)
    yield Server(plane)
    end()


def name_of(server: Server, headers: dict[str, str], *, certificate: bool = False) -> str:
    """The user whom the server sees behind a request that is passed on."""
    reply = server.request("POST", REVIEWS, {}, certificate=certificate, **headers)
    assert reply.code == 201, reply.body
    return str(reply.json["status"]["userInfo"]["username"])


def test_a_certificate_and_a_token_are_passed_on(server: Server) -> None:
    assert name_of(server, {}, certificate=True) == "sliceplane-admin"
    assert name_of(server, {"authorization": f"Bearer {ADMIN}"}) == "admin"
    assert name_of(server, {"authorization": "Bearer nobody-token"}) == "nobody"


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: next(iter(forged)))
def test_no_header_of_a_client_says_who_it_is(server: Server, forged: dict[str, str]) -> None:
    of_nobody = {"authorization": "Bearer nobody-token", **forged}
    for _ in range(4):  # at each process
        assert name_of(server, of_nobody) == "nobody"
        for headers, code in ((of_nobody, 403), (forged, 403)):
            for path in ("/api/v1/secrets", SLICES, f"{SLICES}?watch=true", "/metrics"):
                assert server.request("GET", path, certificate=False, **headers).code == code
        for path in (PROGRESS_PAGE, f"{METRICS_PAGE}reader-1"):
            assert server.request("POST", path, b"", certificate=False, **forged).code == 403
            assert server.request("POST", path, b"", **forged).code == 404, "an administrator"


def test_the_header_counts_at_no_server_without_readers() -> None:
    with serving() as alone:
        for forged in FORGED:
            reply = alone.request("GET", "/api/v1/secrets", certificate=False, **forged)
            assert reply.code == 403


def test_names_of_certificates_have_any_character(server: Server) -> None:
    from sliceplane.api.users import User
    from sliceplane.server.io.connections.local import PEER_HEADER, Peer

    user = User(name="zoë\r\nx-sliceplane-peer: x", groups=("a,b", "ü"))
    peer = Peer(Certificate(user, 1.5, 2.5), ("::1", 5))
    assert Peer.of([(PEER_HEADER, peer.header())]) == peer
    assert not set(peer.header()) & set(b"\r\n:")
    for damaged in ([b"e30="] * 2, [b"x"], [b"W10="]):
        with pytest.raises(ValueError, match=r".*"):
            Peer.of([(PEER_HEADER, value) for value in damaged])
    assert Peer.of([(b"x-remote-user", b"admin")]).certificate is None


def put(server: Server, name: str, **labels: str) -> int:
    """The version of the slice that was written."""
    document = {**endpoint_slice(name), "metadata": {"name": name, "labels": labels}}
    reply = server.request("PUT", f"{IN_DEFAULT}/{name}", document)
    if reply.code == 404:
        reply = server.request("POST", IN_DEFAULT, document)
    assert reply.code in (200, 201), reply.body
    return int(reply.json["metadata"]["resourceVersion"])


def test_a_client_reads_its_own_write_at_every_process(server: Server) -> None:
    for number in range(20):
        version = put(server, "own", round=str(number))
        # What is written elsewhere moves the version, and no event of slices says so.
        server.request("POST", CM, {"metadata": {"name": f"other-{number}"}})
        for query in ("", f"?resourceVersion={version}&resourceVersionMatch=NotOlderThan"):
            listed = server.get(f"{IN_DEFAULT}{query}").json
            assert int(listed["metadata"]["resourceVersion"]) >= version
            labels = {one["metadata"]["name"]: one["metadata"]["labels"] for one in listed["items"]}
            assert labels["own"] == {"round": str(number)}
        one = server.get(f"{IN_DEFAULT}/own").json
        assert one["metadata"]["labels"] == {"round": str(number)}


def series(server: Server, name: str) -> dict[str, float]:
    """The sum of a metric's series by process."""
    sums: dict[str, float] = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith(f"{name}{{"):
            process = line.partition('process="')[2].partition('"')[0]
            sums[process] = sums.get(process, 0.0) + float(line.rpartition(" ")[2])
    return sums


def test_metrics_are_those_of_every_process(server: Server) -> None:
    for _ in range(10):
        assert server.get(f"{SLICES}?resourceVersion=0").code == 200
    requests = until(
        lambda: series(server, "apiserver_request_total"),
        lambda sums: sums.get("reader-1", 0) and sums.get("reader-2", 0),
    )
    assert set(requests) == {"server", "reader-1", "reader-2"}
    text = server.get("/metrics").body.decode()
    assert text.count("# TYPE apiserver_request_total counter") == 1
    assert sum(series(server, "sliceplane_relay_passed_requests_total").values()) > 0


def test_each_request_is_audited_once_with_its_client(server: Server) -> None:
    assert server.plane.config.audit is not None
    folder = server.plane.config.audit.path.parent
    marks = {"memory": f"{SLICES}?resourceVersion=0&marked=here", "server": f"{CM}?marked=there"}
    for uri in marks.values():
        assert server.get(uri).code == 200

    def lines(uri: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for file in folder.iterdir():
            for line in file.read_text().splitlines():
                event = json.loads(line)
                if event["requestURI"] == uri and event["stage"] == "ResponseComplete":
                    found.setdefault(file.name, []).append(event)
        return found

    for where, uri in marks.items():
        (file, events), *others = until(lambda uri=uri: lines(uri)).items()
        assert (len(events), others) == (1, [])
        assert (file != "audit.log") == (where == "memory")
        assert events[0]["sourceIPs"] == ["127.0.0.1"]
        assert events[0]["user"]["username"] == "sliceplane-admin"


@pytest.mark.parametrize("path", ["slices", "configmaps"])
def test_a_watch_ends_with_its_token(server: Server, path: str) -> None:
    """Slices are served from memory, and config maps are passed on."""
    name = f"reader-of-{path}"
    token = account(server, name)
    group, resource = {"slices": ("discovery.k8s.io", "endpointslices")}.get(path, ("", path))
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["watch"]}
    bound = f"{RBAC}/namespaces/default"
    role = {"metadata": {"name": name}, "rules": [rule]}
    assert server.request("POST", f"{bound}/roles", role).code == 201
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    reference = {"kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    assert server.request("POST", f"{bound}/rolebindings", binding).code == 201
    opened = server.connect(certificate=False)
    opened.timeout = REVOKED_S_MAX
    url = {"slices": IN_DEFAULT}.get(path, CM)
    opened.request("GET", f"{url}?watch=true", headers={"authorization": f"Bearer {token}"})
    answer = opened.getresponse()
    assert answer.status == 200, answer.read()
    gone = f"/api/v1/namespaces/default/serviceaccounts/{name}"
    assert server.request("DELETE", gone).code == 200
    last = [json.loads(line) for line in answer][-1]
    assert (last["type"], last["object"]["code"]) == ("ERROR", 401)
    opened.close()


def test_an_authority_that_is_gone_signs_for_nobody(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "clients")
    ca_file = tmp_path / "clients.crt"
    ca_file.write_bytes(authority.pem)
    files = authority.client("ann", DAY)
    config = PlaneConfig(data_dir="memory:", secure_port=0, readers=2, client_ca_file=ca_file)
    plane, end = run_plane(config, periods=Periods(authorities_s=0.2))
    try:
        server = Server(plane)

        def connect() -> http.client.HTTPSConnection:
            context = server.context(certificate=False)
            context.load_cert_chain(*files)
            return http.client.HTTPSConnection(server.host, server.port, context=context)

        def code() -> int:
            opened = connect()
            try:
                opened.request("GET", "/api/v1/secrets")
                return opened.getresponse().status
            except OSError:
                return 0
            finally:
                opened.close()

        assert {code() for _ in range(6)} == {200}
        open_before = connect()
        open_before.request("GET", f"{SLICES}?watch=true")
        stream = open_before.getresponse()
        ca_file.write_bytes(Authority.make(tmp_path, "others").pem)
        until(lambda: {code() for _ in range(6)} == {0})
        with pytest.raises((http.client.IncompleteRead, OSError)):
            stream.read()
        open_before.close()
    finally:
        end()


def test_anonymous_clients_may_be_refused() -> None:
    with serving(readers=1, anonymous=False) as server:
        for path in (SLICES, CM, "/healthz"):
            assert server.request("GET", path, certificate=False).code == 401


def test_the_folder_of_a_server_with_readers_is_private_and_goes(tmp_path: Path) -> None:
    config = PlaneConfig(data_dir=str(tmp_path / "data"), secure_port=0, readers=1)
    for _ in range(2):  # sqlite: the second start has what the first one wrote
        plane, end = run_plane(config)
        folder = tmp_path / "data" / "readers"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
        first = put(Server(plane), "kept", colour="red")
        listed = Server(plane).get(f"{IN_DEFAULT}?labelSelector=colour%3Dred").json["items"]
        assert [int(one["metadata"]["resourceVersion"]) for one in listed] == [first]
        end()
        assert not folder.exists()


def test_a_port_is_of_one_server(tmp_path: Path) -> None:
    sockets = bind_shared("127.0.0.1", 0, 3)
    try:
        ports = {sock.getsockname()[1] for sock in sockets}
        assert len(ports) == 1
        for other in (bind, lambda *where: bind_shared(*where, 2)):
            with pytest.raises(StartError, match="cannot listen"):
                other("127.0.0.1", min(ports))
    finally:
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize("count", [1, 2, 3, 64])
def test_shares_of_limits_are_no_more_than_the_limits(count: int) -> None:
    whole, share = asdict(Limits()), asdict(Limits().share(count))
    assert all(0 < share[name] * count <= value for name, value in whole.items())
