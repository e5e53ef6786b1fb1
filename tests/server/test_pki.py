"""The plane's authority: what is made, when it is made anew, who may read it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import ssl
import stat
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.connections.tls import server_context
from sliceplane.server.io.keys import pki

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
    assert (
        certificate(made.admin_file).subject.rfc4514_string()
        == f"CN={pki.ADMIN_NAME},O={pki.ADMIN_GROUP}"
    )


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
    names = (
        certificate(made.server_file)
        .extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME)
        .value
    )
    assert isinstance(names, x509.SubjectAlternativeName)
    assert {"192.0.2.1", "192.0.2.2"} <= {str(name.value) for name in names}
    _, anything = pki.ensure(tmp_path / "pki", pki.server_names(("192.0.2.1",)), NOW)
    assert not anything


@pytest.mark.parametrize(
    "victim", ["apiserver.crt", "apiserver.key", "admin.key", "manifest.json", "ca.crt"]
)
def test_damaged_or_missing_file_is_made_anew(tmp_path: Path, victim: str) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW)
    (made.folder / victim).write_bytes(b"garbage")
    _, anything = pki.ensure(tmp_path / "pki", NAMES, NOW)
    assert anything
    assert (made.folder / victim).read_bytes() != b"garbage"
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


def _handshake(server: pki.Pki, client: pki.Pki, trusted: bytes) -> None:
    """Over memory, at the machine's clock; raises ``ssl.SSLError``."""
    serving = server_context(server)
    dialling = ssl.create_default_context(cadata=trusted.decode())
    dialling.load_cert_chain(client.admin_file, client.admin_key_file)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = serving.wrap_bio(to_server, to_client, server_side=True)
    theirs = dialling.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for _ in range(4):
        for end in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert ours.getpeercert()
    assert theirs.getpeercert()


@pytest.mark.parametrize("old_manifest", [False, True])
def test_a_start_with_the_clock_two_days_ahead_locks_nobody_out_when_it_is_right_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old_manifest: bool
) -> None:
    now = time.time()
    made, _ = pki.ensure(tmp_path / "pki", NAMES, now + 2 * DAY)
    with pytest.raises(ssl.SSLError, match="not yet valid"):
        _handshake(made, made, made.ca_file.read_bytes())
    if old_manifest:
        manifest = json.loads((made.folder / "manifest.json").read_text())
        for entry in manifest.values():
            del entry["notBefore"]
        (made.folder / "manifest.json").write_text(json.dumps(manifest))
    identity, key = made.identity, (made.folder / "ca.key").read_bytes()
    _, anything = pki.ensure(tmp_path / "pki", NAMES, now)
    assert anything
    _handshake(made, made, made.ca_file.read_bytes())
    assert (made.folder / "ca.key").read_bytes() == key
    assert made.identity == identity, "servers that share an etcd still know each other"
    said = capsys.readouterr().err
    assert "certificates are not valid yet" in said
    (seconds,) = re.findall(r"seconds=(\d+)", said)
    assert abs(int(seconds) - (2 * DAY - 3600)) < 60, "certificates begin an hour early"
    assert not pki.ensure(tmp_path / "pki", NAMES, now)[1]


def test_a_clock_that_is_an_hour_ahead_is_no_matter(tmp_path: Path) -> None:
    made, _ = pki.ensure(tmp_path / "pki", NAMES, NOW + 3600)
    assert not pki.ensure(tmp_path / "pki", NAMES, NOW)[1]
    assert certificate(made.server_file).not_valid_before_utc.timestamp() == NOW


@pytest.mark.parametrize("wrong_s", [2 * DAY, -56 * 365 * DAY])
def test_old_kubeconfigs_survive_a_clock_that_was_wrong_for_a_while(
    tmp_path: Path, wrong_s: float
) -> None:
    now = time.time()
    made, _ = pki.ensure(tmp_path / "pki", NAMES, now)
    handed_out = tmp_path / "copy"
    shutil.copytree(made.folder, handed_out)
    pki.ensure(tmp_path / "pki", NAMES, now + wrong_s)
    pki.ensure(tmp_path / "pki", NAMES, now)
    _handshake(made, pki.Pki(handed_out), (handed_out / "ca.crt").read_bytes())
