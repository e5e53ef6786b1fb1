"""Client certificates that end, or lose who stands behind them, while connections and watches are
open.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from tests.server.serving import Server, run_plane
from tests.waiting import until

from sliceplane.server.io.config import Periods, PlaneConfig
from sliceplane.server.io.connections.tls import ServerTls
from sliceplane.server.io.keys import pki

NAMESPACES = "/api/v1/namespaces"
DAY = timedelta(days=1)


@dataclass
class Authority:
    """Signs certificates of clients; *file* is what a server is told to trust."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    folder: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key, timedelta(days=30)).add_extension(
            x509.BasicConstraints(True, None), True
        )
        return cls(key, builder.sign(key, hashes.SHA256()), folder)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def file(self) -> Path:
        path = self.folder / f"authority-{self.certificate.serial_number}.crt"
        path.write_bytes(self.pem)
        return path

    def client(
        self, name: str, life: timedelta, group: str = "system:masters"
    ) -> tuple[Path, Path]:
        """Certificate and key of a member of *group*."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        signed = _builder(subject, self.certificate.subject, key, life).sign(
            self.key, hashes.SHA256()
        )
        stem = self.folder / quote(name, safe="")
        files = stem.with_suffix(".crt"), stem.with_suffix(".key")
        files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - DAY, now + life
    )


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path, "clients")


@dataclass
class Case:
    server: Server
    ca_file: Path
    #: the plane's clock is so much ahead
    jump: Callable[[float], None]


@pytest.fixture
def case(kept: PlaneConfig, authority: Authority, tmp_path: Path) -> Iterator[Case]:
    ca_file = tmp_path / "clients.crt"
    ca_file.write_bytes(authority.pem)
    ahead = 0.0

    def jump(seconds: float) -> None:
        nonlocal ahead
        ahead = seconds

    config = replace(kept, client_ca_file=ca_file)
    often = Periods(certificates_s=0.05, authorities_s=0.05)
    plane, end = run_plane(config, clock=lambda: time.time() + ahead, periods=often)
    yield Case(Server(plane), ca_file, jump)
    end()


def connect(
    case: Case, files: tuple[Path, Path], **options: ssl.TLSVersion
) -> http.client.HTTPSConnection:
    context = case.server.context(certificate=False)
    context.load_cert_chain(*files)
    for name, value in options.items():
        setattr(context, name, value)
    return http.client.HTTPSConnection(
        case.server.host, case.server.port, context=context, timeout=60
    )


def code(connection: http.client.HTTPSConnection, path: str = NAMESPACES, **headers: str) -> int:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def code_once(case: Case, files: tuple[Path, Path]) -> int:
    with contextlib.closing(connect(case, files)) as connection:
        return code(connection)


def test_an_expired_certificate_is_nobody_on_a_connection_that_is_open(
    case: Case, authority: Authority
) -> None:
    connection = connect(case, authority.client("alice", timedelta(hours=1)))
    assert code(connection) == 200
    case.jump(3601)
    connection.request("GET", NAMESPACES)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (401, "close")
    assert b'"reason":"Unauthorized"' in answer.read()
    connection.close()


def test_a_good_token_counts_beside_an_expired_certificate(
    case: Case, authority: Authority
) -> None:
    connection = connect(case, authority.client("alice", timedelta(hours=1)))
    case.jump(3601)
    token = case.server.plane.data_dir.tokens.read_text().partition(",")[0]
    assert code(connection, Authorization=f"Bearer {token}") == 200
    connection.close()


def test_a_watch_ends_with_its_certificate(case: Case, authority: Authority) -> None:
    for left_s in (
        2,
        8,
        32,
    ):  # a machine that is held up longer than that meanwhile has an expired one
        connection = connect(case, authority.client("alice", timedelta(hours=1)))
        case.jump(3600 - left_s)
        connection.request("GET", f"{NAMESPACES}?watch=1&timeoutSeconds=300")
        began = time.monotonic()
        answer = connection.getresponse()
        if answer.status == 200:
            break
        connection.close()
        case.jump(0)
    assert answer.status == 200
    while answer.readline():
        pass
    assert time.monotonic() - began < 100, "a clean end, as when timeoutSeconds is over"
    connection.close()


def test_a_resumed_session_brings_no_certificate_back_to_life(
    case: Case, authority: Authority
) -> None:
    """TLS 1.2 can resume a session by its id: then no certificate is sent, and none verified."""
    context = case.server.context(certificate=False)
    context.load_cert_chain(*authority.client("alice", timedelta(hours=1)))
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
        said = b""
        with (
            socket.create_connection((case.server.host, case.server.port), timeout=60) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as tls,
        ):
            tls.sendall(
                f"GET {NAMESPACES} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            )
            with contextlib.suppress(ssl.SSLError):
                while data := tls.recv(65536):
                    said += data
            reused.append(tls.session_reused)
            kept = tls.session
            # OpenSSL drops the session of a connection that ends without close_notify
            # (``SSL_get_session(3)``), as the server's would if our FIN came while it looks for the
            # answer to its own.
            with contextlib.suppress(OSError):
                tls.unwrap()
            return said.split(b"\r\n")[0], kept

    reused: list[bool | None] = []
    answer, session = ask(None)
    assert answer == b"HTTP/1.1 200 OK"
    answer, session = ask(session)
    assert answer == b"HTTP/1.1 200 OK"
    case.jump(3601)
    answer, _ = ask(session)
    assert answer == b"HTTP/1.1 401 Unauthorized"
    assert reused == [False, True, True]
    case.jump(0)
    _swap(case, Authority.make(case.ca_file.parent, "others"))
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        assert ask(session)[0] != b"HTTP/1.1 200 OK", "a session of what was trusted before"


def _swap(case: Case, other: Authority) -> None:
    """Trust another authority, and wait until it is so."""
    files = other.client("mallory", timedelta(hours=1))
    case.ca_file.write_bytes(other.pem)
    until(
        lambda: code_once(case, files),
        lambda code: code == 200,
        ignoring=(OSError, http.client.HTTPException),
    )


def test_who_was_signed_by_an_authority_that_was_taken_away_is_cut_off(
    case: Case, authority: Authority
) -> None:
    """Connections that are idle, and watches; who is trusted still, stays."""
    files = authority.client("alice", timedelta(hours=1))
    idle, watching, admin = connect(case, files), connect(case, files), case.server.connect()
    assert (code(idle), code(admin)) == (200, 200)
    watching.request("GET", f"{NAMESPACES}?watch=1")
    stream = watching.getresponse()
    assert stream.readline()
    _swap(case, Authority.make(case.ca_file.parent, "others"))
    with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
        while stream.readline():
            pass
    with pytest.raises((OSError, http.client.HTTPException)):
        code(idle)
    idle.close()
    watching.close()
    with pytest.raises((OSError, http.client.HTTPException)):
        code_once(case, files)
    assert case.server.get(NAMESPACES).code == 200
    admin.close()


def test_a_handshake_that_began_when_an_authority_was_trusted_does_not_end_well(
    case: Case, authority: Authority
) -> None:
    """Its certificate would be verified by what was trusted then."""
    context = case.server.context(certificate=False)
    context.load_cert_chain(*authority.client("alice", timedelta(hours=1)))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection((case.server.host, case.server.port), timeout=60) as raw:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        raw.sendall(outgoing.read())
        incoming.write(raw.recv(65536))
        _swap(case, Authority.make(case.ca_file.parent, "others"))
        with contextlib.suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        with contextlib.suppress(ConnectionError):
            raw.sendall(outgoing.read())
            assert raw.recv(1) == b"", "it was cut off"


def test_an_authority_that_joins_cuts_nobody_off(case: Case, authority: Authority) -> None:
    connection = connect(case, authority.client("alice", timedelta(hours=1)))
    assert code(connection) == 200
    sock = connection.sock
    other = Authority.make(case.ca_file.parent, "others")
    files = other.client("bob", timedelta(hours=1))
    case.ca_file.write_bytes(authority.pem + other.pem)
    until(
        lambda: code_once(case, files),
        lambda code: code == 200,
        ignoring=(OSError, http.client.HTTPException),
    )
    assert code(connection) == 200
    assert connection.sock is sock, "it is the same connection"
    connection.close()


def test_a_file_of_authorities_that_is_damaged_leaves_what_was_trusted(
    case: Case, authority: Authority, capfd: pytest.CaptureFixture[str]
) -> None:
    files = authority.client("alice", timedelta(hours=1))
    for content in (b"nothing", None):
        if content is None:
            case.ca_file.unlink()
        else:
            case.ca_file.write_bytes(content)
        told = until(
            lambda: capfd.readouterr().err, lambda said: "what was trusted before still is" in said
        )
        assert str(case.ca_file) in told
        assert code_once(case, files) == 200


def test_an_authority_of_our_own_that_was_taken_away_is_trusted_no_more(case: Case) -> None:
    """To delete ``pki/ca.crt`` is how a data folder's credentials are revoked."""
    made = case.server.plane.pki
    files = tuple((case.ca_file.parent / name) for name in ("admin.crt", "admin.key"))
    for copy, original in zip(files, (made.admin_file, made.admin_key_file), strict=True):
        copy.write_bytes(original.read_bytes())
    old = case.server.context()
    kept = http.client.HTTPSConnection(case.server.host, case.server.port, context=old, timeout=60)
    assert code(kept) == 200
    before = case.server.plane.kubeconfig.read_bytes()
    made.ca_file.unlink()
    until(case.server.plane.kubeconfig.read_bytes, lambda now: now != before)
    with pytest.raises((OSError, http.client.HTTPException)):
        code(kept)
    kept.close()
    assert Server(case.server.plane).get(NAMESPACES).code == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        code_once(case, (files[0], files[1]))


def test_an_authority_of_our_own_that_came_to_its_end_stays_trusted(tmp_path: Path) -> None:
    """It is replaced a year early, while kubeconfigs that it signed are in use; only who takes it
    away revokes them.
    """
    now = time.time()
    found, _ = pki.ensure(tmp_path / "pki", (), now)
    former = found.ca_file.read_text()
    tls = ServerTls(found)
    found, made = pki.ensure(tmp_path / "pki", (), now + 3300 * 86_400)
    assert made
    assert found.ca_file.read_text() != former
    assert tls.renew(former) is False
    assert len(tls.context.get_ca_certs()) == 2
    assert tls.follow() is None
    found.ca_file.unlink()
    pki.ensure(tmp_path / "pki", (), now)
    assert tls.renew("") is True
    assert len(tls.context.get_ca_certs()) == 2, "the former one, and the newest"
