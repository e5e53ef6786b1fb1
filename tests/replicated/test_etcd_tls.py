"""etcd behind TLS that asks for client certificates, and several members of which one dies."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.replicated.members import cluster, make
from tests.replicated.servers import servers

from sliceplane.server.io.storage.committing import StorageError
from sliceplane.server.io.storage.etcd.backend import EtcdBackend
from sliceplane.server.io.storage.etcd.client import EtcdConfig


class Authority:
    """Writes PEM files: ``ca.crt``, and a pair for each name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd-ca")])
        self.file = self._write("ca.crt", self._certificate(self._name, self._key, authority=True))

    def pair(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._write(f"{name}.crt", self._certificate(subject, key, authority=False))
        form = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key_file = self.folder / f"{name}.key"
        key_file.write_bytes(key.private_bytes(*form))
        return certificate, key_file

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path


async def test_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server_cert, server_key = authority.pair("server")
    client_cert, client_key = authority.pair("client")
    (member,) = make(tmp_path, 1)
    member.scheme = "https"
    member.flags = (
        "--cert-file",
        str(server_cert),
        "--key-file",
        str(server_key),
        "--client-cert-auth",
        "--trusted-ca-file",
        str(authority.file),
    )
    member.start()
    try:
        member.wait_ready()
        files = {"ca_file": authority.file, "cert_file": client_cert, "key_file": client_key}
        async with servers(1, member.url, **files) as (one,):
            await one.put("a", "1")
            assert await one.get("a") == "1"
        stranger = EtcdBackend(EtcdConfig(servers=(member.url,), ca_file=authority.file))
        with pytest.raises(StorageError, match="cannot be reached"):
            stranger.snapshot(patience_s=0.3)
        stranger.close()
    finally:
        member.kill()


async def test_a_member_that_dies_is_left_for_another(tmp_path: Path) -> None:
    with cluster(tmp_path, 3) as members:
        async with servers(2, *(each.url for each in members)) as (one, two):
            await one.put("a", "0")
            for number, member in enumerate(members):
                member.kill()
                await one.put("a", str(number))
                assert await two.get("a") == str(number)
                member.start()
                member.wait_ready()


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*nothing\.crt: no such file"):
        EtcdBackend(EtcdConfig(servers=("https://127.0.0.1:9",), ca_file=tmp_path / "nothing.crt"))
