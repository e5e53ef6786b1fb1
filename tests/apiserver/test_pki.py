"""The plane's authority: what is made, when it is made anew, who may read it."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from sliceplane.shell import pki
from sliceplane.shell.start_error import StartError

NOW = 1_800_000_000.0
DAY = 86_400
NAMES = pki.server_names(("10.96.0.1",))


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_first_start_makes_everything_private(tmp_path: Path) -> None:
    made, anything = pki.ensure(tmp_path / "pki", NAMES, NOW)
    assert anything
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()} == {0o600}
    server = certificate(made.server_file)
    server.verify_directly_issued_by(certificate(made.ca_file))
    certificate(made.admin_file).verify_directly_issued_by(certificate(made.ca_file))
    names = server.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    assert isinstance(names, x509.SubjectAlternativeName)
    assert {str(name.value) for name in names} == set(NAMES)


def test_admin_certificate_names_user_and_group(tmp_path: Path) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    assert certificate(made.admin_file).subject.rfc4514_string() == f"CN={pki.ADMIN_NAME},O={pki.ADMIN_GROUP}"


def test_second_start_makes_nothing(tmp_path: Path) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    before = {path.name: path.read_bytes() for path in made.folder.iterdir()}
    _, anything = pki.ensure(tmp_path / "pki", NAMES, NOW + 300 * DAY)
    assert not anything
    assert {path.name: path.read_bytes() for path in made.folder.iterdir()} == before


@pytest.mark.parametrize("stem", ["apiserver", "admin"])
def test_expiring_certificate_is_renewed_by_the_same_authority(tmp_path: Path, stem: str) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    authority, old = made.ca_file.read_bytes(), (made.folder / f"{stem}.crt").read_bytes()
    _, anything = pki.ensure(tmp_path / "pki", NAMES, NOW + 340 * DAY)
    assert anything
    assert made.ca_file.read_bytes() == authority
    assert (made.folder / f"{stem}.crt").read_bytes() != old


def test_expiring_authority_takes_everything_with_it(tmp_path: Path) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    authority = made.ca_file.read_bytes()
    pki.ensure(tmp_path / "pki", NAMES, NOW + 3300 * DAY)
    assert made.ca_file.read_bytes() != authority
    certificate(made.server_file).verify_directly_issued_by(certificate(made.ca_file))
    certificate(made.admin_file).verify_directly_issued_by(certificate(made.ca_file))


def test_new_name_renews_the_server_certificate_and_keeps_the_old_names(tmp_path: Path) -> None:
    made, _ = pki.ensure(tmp_path / "pki", pki.server_names(("192.0.2.1",)), NOW)
    pki.ensure(tmp_path / "pki", pki.server_names(("192.0.2.2",)), NOW)
    names = certificate(made.server_file).extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    assert isinstance(names, x509.SubjectAlternativeName)
    assert {"192.0.2.1", "192.0.2.2"} <= {str(name.value) for name in names}
    _, anything = pki.ensure(tmp_path / "pki", pki.server_names(("192.0.2.1",)), NOW)
    assert not anything


@pytest.mark.parametrize("victim", ["apiserver.crt", "apiserver.key", "admin.key", "manifest.json", "ca.crt"])
def test_damaged_or_missing_file_is_made_anew(tmp_path: Path, victim: str) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    (made.folder / victim).write_bytes(b"garbage")
    pki.ensure(tmp_path / "pki", NAMES, NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server_file, made.server_key_file)
    context.load_cert_chain(made.admin_file, made.admin_key_file)
    certificate(made.server_file).verify_directly_issued_by(certificate(made.ca_file))


def test_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"cannot create .*/file/pki: not a directory"):
        pki.ensure(tmp_path / "file" / "pki", NAMES, NOW)


def test_kubeconfig_embeds_the_credentials(tmp_path: Path) -> None:
    import base64

    import yaml

    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    config = yaml.safe_load(pki.kubeconfig(made, "https://127.0.0.1:6443"))
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    user = config["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == made.admin_key_file.read_bytes()
    assert config["current-context"] == config["contexts"][0]["name"]
