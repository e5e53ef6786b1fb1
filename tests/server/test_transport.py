"""What is listened on, with which versions of TLS, and under which names."""

from __future__ import annotations

import os
import socket
import ssl
import warnings
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID
from tests.server.serving import Server, run_plane

from sliceplane.controllers.io.catalogue import default_controllers
from sliceplane.controllers.io.embedded import ControllerService
from sliceplane.kit.io import interfaces
from sliceplane.server.io.access import certificate_names
from sliceplane.server.io.config import PlaneConfig
from sliceplane.server.io.keys import pki

LISTENS = "0A"


def handshake(server: Server, first: ssl.TLSVersion, last: ssl.TLSVersion) -> str | None:
    context = server.context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = first, last
        context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection((server.host, server.port), timeout=60) as raw,
        context.wrap_socket(raw, server_hostname=server.host) as secured,
    ):
        return secured.version()


def test_tls_1_2_is_the_oldest(server: Server) -> None:
    versions = ssl.TLSVersion
    assert handshake(server, versions.TLSv1_2, versions.TLSv1_2) == "TLSv1.2"
    assert handshake(server, versions.TLSv1_3, versions.TLSv1_3) == "TLSv1.3"
    for old in (versions.TLSv1, versions.TLSv1_1):
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version|EOF"):
            handshake(server, old, old)


def listening() -> set[str]:
    """The addresses that this process listens on, as the kernel tells."""
    inodes = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == LISTENS and columns[9] in inodes:
                raw = bytes.fromhex(columns[1].partition(":")[0])
                words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
                found.add(str(ip_address(b"".join(words))))
    return found


def test_nothing_listens_beyond_loopback_unless_asked() -> None:
    service = ControllerService(default_controllers())
    plane, end = run_plane(PlaneConfig(data_dir="memory:", secure_port=0), services=(service,))
    try:
        assert plane.url.startswith("https://127.0.0.1:")
        assert "127.0.0.1" in listening()
        assert all(ip_address(address).is_loopback for address in listening())
    finally:
        end()


def names_of(file: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    names = certificate.extensions.get_extension_for_oid(
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME
    ).value
    assert isinstance(names, x509.SubjectAlternativeName)
    return {str(name.value) for name in names}


def test_the_kernel_tells_the_addresses() -> None:
    found = interfaces.addresses(ipv6=True)
    assert list(found) == sorted(found, key=lambda text: (":" in text, ip_address(text).packed))
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((address, 0))
    assert set(interfaces.addresses(ipv6=False)) == {
        address for address in found if ":" not in address
    }
    assert not any(ip_address(address).is_loopback for address in found)


def test_a_server_on_every_interface_is_known_by_the_addresses_of_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = ["192.0.2.7"]
    monkeypatch.setattr(
        interfaces, "addresses", lambda *, ipv6: (*mine, *(["2001:db8::7"] if ipv6 else []))
    )
    config = PlaneConfig(data_dir=str(tmp_path), bind_address="::", secure_port=0)
    assert {"192.0.2.7", "2001:db8::7"} <= set(certificate_names(config))
    made, _ = pki.ensure(tmp_path / "pki", certificate_names(config), 1_800_000_000.0)
    assert {"192.0.2.7", "2001:db8::7"} <= names_of(made.server_file)
    mine.append("192.0.2.8")
    _, anything = pki.ensure(tmp_path / "pki", certificate_names(config), 1_800_000_000.0)
    assert anything
    assert {"192.0.2.7", "192.0.2.8"} <= names_of(made.server_file)
    loopback = PlaneConfig(data_dir=str(tmp_path))
    assert "192.0.2.7" not in certificate_names(loopback)


def test_former_names_do_not_pile_up(tmp_path: Path) -> None:
    for third in range(3):
        addresses = tuple(f"10.0.{third}.{last}" for last in range(1, 129))
        made, _ = pki.ensure(tmp_path / "pki", pki.server_names(addresses), 1_800_000_000.0)
        assert set(addresses) <= names_of(made.server_file)
    assert len(names_of(made.server_file)) == pki.NAMES_MAX
