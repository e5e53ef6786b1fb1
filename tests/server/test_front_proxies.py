"""Front proxies: who may say for which user a request is, at a server and at its reader processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_certificates_over_time import DAY, Authority
from tests.waiting import until

from sliceplane.api.errors import StatusError
from sliceplane.api.users import User
from sliceplane.kit.io.start_error import StartError
from sliceplane.kit.io.tls.acceptor import FrontProxies
from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections.front_proxy import headers_of, of_request
from sliceplane.watch.io.certificates import Certificate

REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
WHO_AM_I = b'{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}'
Files = tuple[Path, Path]
#: in the spellings that a reader might take for the same name, or not
SPOOFED = (
    {"X-Remote-User": "root", "X-Remote-Group": "system:masters"},
    {"x-remote-user": "root", "x-remote-group": "system:masters"},
    {"X-REMOTE-USER": "root", "X-REMOTE-GROUP": "system:masters", "X-REMOTE-EXTRA-A": "b"},
    {"x-ReMoTe-UsEr": "root", "X-Remote-Uid": "0", "X-Remote-Extra-scopes": "all"},
)


@dataclass
class Party:
    """Who takes part: the server's authorities, and certificates that they signed."""

    users: Authority
    proxies: Authority

    def __post_init__(self) -> None:
        self.ann = self.users.client("ann", DAY, "team")
        self.proxy = self.proxies.client("relay", DAY, "proxies")
        self.stranger = self.proxies.client("stranger", DAY)
        #: its name is that of a proxy, and its authority another one
        self.namesake = self.users.client("relay", DAY, "team")

    @classmethod
    def make(cls, folder: Path) -> Party:
        for name in ("users", "proxies"):
            (folder / name).mkdir()
        users, proxies = (Authority.make(folder / name, name) for name in ("users", "proxies"))
        return cls(users, proxies)

    def settings(self, *names: str) -> dict[str, Any]:
        """Of a server or a relay."""
        proxies = FrontProxies(self.proxies.file, frozenset(names))
        return {"client_ca_file": self.users.file, "front_proxies": proxies}


@pytest.fixture(scope="module")
def party(tmp_path_factory: pytest.TempPathFactory) -> Party:
    return Party.make(tmp_path_factory.mktemp("authorities"))


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens.csv"
    path.write_text("bob-token,bob,2\n")
    return path


@pytest.fixture(scope="module", params=[0, 1], ids=["alone", "readers"])
def server(request: Any, party: Party, token_file: Path) -> Iterator[Server]:
    settings = {**party.settings("relay", "other"), "token_auth_file": token_file}
    config = PlaneConfig(data_dir="memory:", secure_port=0, readers=request.param, **settings)
    plane, end = run_plane(config)
    yield Server(plane)
    end()


def connect(server: Server, files: Files | None) -> http.client.HTTPSConnection:
    context = server.context(certificate=False)
    if files is not None:
        context.load_cert_chain(*files)
    return http.client.HTTPSConnection(server.host, server.port, context=context, timeout=60)


def who(
    server: Server,
    files: Files | None,
    fields: dict[str, str] | list[tuple[str, str]] = (),  # type: ignore[assignment]
    connection: http.client.HTTPSConnection | None = None,
) -> Any:
    """The user that a request is for; the code of a refusal."""
    opened = connection or connect(server, files)
    try:
        opened.putrequest("POST", REVIEWS)
        for name, value in dict(fields).items() if isinstance(fields, dict) else fields:
            opened.putheader(name, value.encode())
        opened.putheader("Content-Type", "application/json")
        opened.putheader("Content-Length", str(len(WHO_AM_I)))
        opened.endheaders(WHO_AM_I)
        answer = opened.getresponse()
        body = json.loads(answer.read())
        return body["status"]["userInfo"] if answer.status == 201 else answer.status
    finally:
        if connection is None:
            opened.close()


def name_of(*arguments: Any) -> Any:
    found = who(*arguments)
    return found["username"] if isinstance(found, dict) else found


CUT = (OSError, http.client.HTTPException)
BOB = {"Authorization": "Bearer bob-token"}


def test_a_front_proxy_names_users(server: Server, party: Party) -> None:
    fields = [
        ("X-Remote-User", "eve"),
        ("X-Remote-Uid", "7"),
        ("x-remote-group", "a, b"),
        ("X-Remote-Group", ""),
        ("X-Remote-Group", "c"),
        ("X-Remote-Extra-Acme.com%2fScopes", "x"),
        ("X-REMOTE-EXTRA-ACME.COM%2FSCOPES", "y"),
    ]
    assert who(server, party.proxy, fields) == {
        "username": "eve",
        "uid": "7",
        "groups": ["a, b", "c", "system:authenticated"],
        "extra": {"acme.com/scopes": ["x", "y"]},
    }


def test_each_request_of_a_connection_is_for_its_own_user(server: Server, party: Party) -> None:
    connection = connect(server, party.proxy)
    for name in ("eve", "mallory", "eve"):
        assert name_of(server, None, {"X-Remote-User": name}, connection) == name
    secret = "/api/v1/namespaces/default/secrets"
    for name, group, code in (("eve", "x", 403), ("eve", "system:masters", 200), ("eve", "x", 403)):
        connection.request("GET", secret, headers={"X-Remote-User": name, "X-Remote-Group": group})
        answer = connection.getresponse()
        assert (answer.status, b"eve" in answer.read()) == (code, code == 403)
    assert name_of(server, None, {}, connection) == 401, "nobody is named, and it is no user"
    connection.close()


def test_users_of_a_pipeline_are_not_mixed_up(server: Server, party: Party) -> None:
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        connect(server, party.proxy)._context.wrap_socket(raw, server_hostname="localhost") as tls,  # type: ignore[attr-defined]
    ):
        for number in range(8):
            tls.write(
                f"POST {REVIEWS} HTTP/1.1\r\nHost: x\r\nX-Remote-User: user-{number}\r\n"
                "Content-Length: 2\r\n\r\n{}".encode()
            )
        said = b""
        while said.count(b"user-") < 8:
            said += tls.recv(65536)
    assert [said.find(b'"user-%d"' % number) for number in range(8)] == sorted(
        said.find(b'"user-%d"' % number) for number in range(8)
    )
    assert b'"user-7"' in said


def test_without_a_user_it_is_nobody(server: Server, party: Party) -> None:
    assert name_of(server, party.proxy) == 401, "not anonymous, and no user of its own name"
    assert name_of(server, party.proxy, {"X-Remote-User": ""}) == 401
    assert name_of(server, party.proxy, {"X-Remote-Group": "system:masters"}) == 401
    assert name_of(server, party.proxy, BOB) == "bob"
    assert name_of(server, party.proxy, {**BOB, "X-Remote-User": "eve"}) == "eve", "as upstream"


@pytest.mark.parametrize("fields", SPOOFED)
def test_headers_of_others_are_without_effect(
    server: Server, party: Party, fields: dict[str, str]
) -> None:
    assert who(server, party.ann, fields) == who(server, party.ann), "a user's certificate"
    assert who(server, None, {**BOB, **fields}) == who(server, None, BOB)
    assert name_of(server, None, fields) == name_of(server, None) == 403, "anonymous"
    assert who(server, party.namesake, fields)["groups"] == ["team", "system:authenticated"]
    assert name_of(server, party.stranger, fields) == 401, "a name that is not allowed"
    assert name_of(server, party.stranger, {**BOB, **fields}) == "bob"
    trailed = {**BOB, "X-Remote-User ": "root"}
    assert name_of(server, None, {**BOB, "X_Remote_User": "root"}) == "bob"
    with pytest.raises((ValueError, json.JSONDecodeError)):
        assert name_of(server, party.ann, trailed) == 400


def test_a_trailer_names_nobody(server: Server, party: Party) -> None:
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        connect(server, party.proxy)._context.wrap_socket(raw, server_hostname="localhost") as tls,  # type: ignore[attr-defined]
    ):
        tls.write(
            f"POST {REVIEWS} HTTP/1.1\r\nHost: x\r\nTrailer: X-Remote-User\r\n"
            "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Remote-User: root\r\n\r\n".encode()
        )
        assert tls.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_resumed_session_is_nobodys(server: Server, party: Party) -> None:
    """It has no chain of certificates, so nobody knows which authority signed the first one."""
    for files in (party.proxy, party.stranger, party.ann):
        context = connect(server, files)._context  # type: ignore[attr-defined]
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        session = None
        codes = []
        for _ in range(2):
            with (
                socket.create_connection((server.host, server.port), timeout=60) as raw,
                context.wrap_socket(raw, server_hostname="localhost", session=session) as tls,
            ):
                head = "Host: x\r\nConnection: close\r\nX-Remote-User: eve\r\nContent-Length: 2"
                tls.sendall(f"POST {REVIEWS} HTTP/1.1\r\n{head}\r\n\r\n{{}}".encode())
                said = b""
                while data := tls.recv(65536):
                    said += data
                session = tls.session
                codes.append((int(said.split()[1]), tls.session_reused))
                with contextlib.suppress(OSError):
                    tls.unwrap()
        assert codes == [(401 if files is party.stranger else 201, False), (401, True)]


def test_impersonation_needs_the_named_users_right(server: Server, party: Party) -> None:
    fields = {"X-Remote-User": "eve", "Impersonate-User": "root"}
    assert name_of(server, party.proxy, fields) == 403
    assert name_of(server, party.proxy, {**fields, "X-Remote-Group": "system:masters"}) == "root"
    twice = {**fields, "X-Remote-Group": "system:masters", "Impersonate-Group": "x"}
    assert who(server, party.proxy, twice)["groups"] == ["x", "system:authenticated"]


def test_the_anonymous_user_gets_no_group(server: Server, party: Party) -> None:
    assert name_of(server, party.proxy, {"X-Remote-User": "system:anonymous"}) == 403


def test_connections_are_charged_to_the_proxy(party: Party) -> None:
    config = PlaneConfig(data_dir="memory:", secure_port=0, **party.settings())
    plane, end = run_plane(config)
    try:
        server = Server(plane)
        connection = connect(server, party.proxy)
        for name in ("eve", "mallory"):
            assert name_of(server, None, {"X-Remote-User": name}, connection) == name
        assert list(plane.listener.accounts) == ["relay"]
        connection.close()
        connection = connect(server, party.stranger)
        assert name_of(server, None, {"X-Remote-User": "eve"}, connection) == "eve", (
            "no names: every certificate of the authority"
        )
        connection.close()
    finally:
        end()


@pytest.mark.parametrize("readers", [0, 1])
def test_an_authority_that_is_exchanged(party: Party, tmp_path: Path, readers: int) -> None:
    """A proxy is cut off, and what it had signed is not believed as that of users either."""
    proxies, users = tmp_path / "proxies.crt", tmp_path / "users.crt"
    proxies.write_bytes(party.proxies.pem)
    users.write_bytes(party.users.pem)
    config = PlaneConfig(
        data_dir="memory:",
        secure_port=0,
        readers=readers,
        client_ca_file=users,
        front_proxies=FrontProxies(proxies, frozenset({"relay"})),
    )
    plane, end = run_plane(config, periods=Periods(authorities_s=0.1))
    try:
        server = Server(plane)
        open_before = connect(server, party.proxy)
        eve = {"X-Remote-User": "eve"}
        assert name_of(server, None, eve, open_before) == "eve"
        other = Authority.make(tmp_path, "others")
        proxies.write_bytes(other.pem)
        later = other.client("relay", DAY)
        until(
            lambda: name_of(server, later, eve), lambda found: found == "eve", ignoring=(OSError,)
        )
        with contextlib.closing(open_before), pytest.raises(CUT):
            name_of(server, None, eve, open_before)
        with pytest.raises(CUT):
            name_of(server, party.proxy, eve)
        # The same certificates, for another use: those who are connected must not go on.
        open_before = connect(server, later)
        assert name_of(server, None, eve, open_before) == "eve"
        users.write_bytes(other.pem)
        proxies.write_bytes(party.users.pem)
        until(
            lambda: name_of(server, later, eve), lambda found: found == "relay", ignoring=(OSError,)
        )
        with contextlib.closing(open_before), pytest.raises(CUT):
            name_of(server, None, eve, open_before)
    finally:
        end()


def test_an_authority_for_both_needs_names(party: Party, tmp_path: Path) -> None:
    both = FrontProxies(party.users.file)
    config = PlaneConfig(
        data_dir=str(tmp_path), secure_port=0, client_ca_file=party.users.file, front_proxies=both
    )
    with pytest.raises(StartError, match="--requestheader-allowed-names"):
        run_plane(config)
    named = FrontProxies(party.users.file, frozenset({"relay"}))
    plane, end = run_plane(
        PlaneConfig(
            data_dir="memory:", secure_port=0, client_ca_file=party.users.file, front_proxies=named
        )
    )
    try:
        server = Server(plane)
        eve = {"X-Remote-User": "eve"}
        assert name_of(server, party.ann, eve) == "ann"
        assert name_of(server, party.namesake, eve) == "eve"
        assert name_of(server, party.namesake) == "relay", "it is a user, too, as upstream"
    finally:
        end()


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_a_file_without_authorities_is_refused(text: str, party: Party, tmp_path: Path) -> None:
    file = tmp_path / "none.crt"
    file.write_text(text)
    config = PlaneConfig(data_dir="memory:", secure_port=0, front_proxies=FrontProxies(file))
    with pytest.raises(StartError, match="certificate"):
        run_plane(config)


PROXY = Certificate(User(name="relay"), 1.0, 5.0, is_user=False, is_proxy=True)


def test_headers_name_the_same_user_at_the_other_side() -> None:
    user = User(
        name="ann é",
        uid="7",
        groups=("a, b", "ü", "system:authenticated"),
        extra=(("%2f", ("",)), ("a/b c", ("x", "y: z")), ("é", ("%",))),
    )
    fields = [(name.lower(), value) for name, value in headers_of(user)]
    found = of_request(PROXY, fields)
    assert found == Certificate(user, 1.0, 5.0)
    assert (found.counts(3.0), found.counts(5.1)) == (True, False), "as long as the proxy's"
    assert of_request(PROXY, []) is PROXY
    assert not PROXY.counts(3.0)


@pytest.mark.parametrize(
    "bad", ["root ", " root", "root\r\nX-Remote-Group: system:masters", "a\tb", "a\x00", "\u00a0a"]
)
def test_a_name_that_would_be_another_ones_is_refused(bad: str) -> None:
    for user in (User(name=bad), User(name="ann", groups=(bad,)), User(name="ann", uid=bad)):
        with pytest.raises(StatusError, match="no header can have"):
            list(headers_of(user))
