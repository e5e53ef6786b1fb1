"""The plane's own certificate authority, made at the first start and kept in ``<data-dir>/pki``.

Three EC P-256 certificates: ``ca`` (10 years), ``apiserver`` (1 year; its names are what clients
may dial) and ``admin`` (1 year; organisation ``system:masters``). ``manifest.json`` repeats what a
later start has to know (expiry, names, SHA-256 of each file), so that it need not load the
cryptography library, which costs a fifth of the start-up budget. A certificate that expires soon,
that is not valid yet, whose names do not cover what is asked for, or that is not the file the
manifest describes, is made anew.

**Clocks.**  A certificate is valid from an hour before it was made. One that is not valid yet was
made by a clock that was ahead, or is looked at by one that is behind: it would lock all clients
out, so it is made anew and that is logged. The authority keeps its key for as long as its files are
sound, whatever the clock says meanwhile: the certificate of before and the one of now then vouch
for each other's clients, so a clock that was wrong for a day costs no client its kubeconfig. Only
an authority that is missing or damaged is replaced, because that cuts off every client.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sliceplane.kit.io.log import get_logger
from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.datadir import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

ADMIN_NAME = "sliceplane-admin"
ADMIN_GROUP = "system:masters"

#: of a certificate, former names included; addresses of a machine come and go
NAMES_MAX = 256

_DAY_S = 86_400
_CA_LIFETIME_S = 3650 * _DAY_S
_LEAF_LIFETIME_S = 365 * _DAY_S
_LIFETIME_S = {"ca": _CA_LIFETIME_S, "apiserver": _LEAF_LIFETIME_S, "admin": _LEAF_LIFETIME_S}
#: renewed when less than this is left
_CA_MARGIN_S = 400 * _DAY_S
_LEAF_MARGIN_S = 30 * _DAY_S
#: certificates are valid from a little before they are made: clocks differ
_BACKDATE_S = 3600

_log = get_logger("pki")


class Pki(msgspec.Struct, frozen=True):
    """Paths of what ``ensure`` found or made."""

    folder: Path

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def identity(self) -> str:
        """The name of the authority: the same for as long as it has its key, whatever certificates
        it had. Raises ``OSError`` where there is none.
        """
        origin = _read_manifest(self.folder).get("ca", {}).get("origin")
        return str(origin) if origin else _digest(self.ca_file.read_bytes())

    @property
    def server_file(self) -> Path:
        return self.folder / "apiserver.crt"

    @property
    def server_key_file(self) -> Path:
        return self.folder / "apiserver.key"

    @property
    def token_key_file(self) -> Path:
        """The key that signs service account tokens (made by ``apiserver.token_keys``)."""
        return self.folder / "sa.key"

    @property
    def admin_file(self) -> Path:
        return self.folder / "admin.crt"

    @property
    def admin_key_file(self) -> Path:
        return self.folder / "admin.key"


def server_names(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names that the server certificate must have: the usual names, loopback, and
    *addresses* (IPs).
    """
    service = (
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    names = ("localhost", "127.0.0.1", "::1", *service)
    return names + tuple(address for address in addresses if address not in names)


def ensure(folder: Path, names: tuple[str, ...], now: float) -> tuple[Pki, bool]:
    """Make whatever is missing, damaged or expiring in *folder*; says whether anything was made.

    Raises ``StartError`` if the folder cannot be written or the authority's key cannot be read.
    """
    pki = Pki(folder)
    manifest = _read_manifest(folder)
    files = {stem: _are_those_of(folder, manifest, stem) for stem in _LIFETIME_S}
    ahead_s = max(
        (_begins(manifest, stem) - now for stem, sound in files.items() if sound), default=0.0
    )
    usable = {
        "ca": files["ca"] and _is_in_time(manifest, "ca", now, _CA_MARGIN_S),
        "apiserver": files["apiserver"]
        and _is_in_time(manifest, "apiserver", now, _LEAF_MARGIN_S)
        and set(names) <= set(manifest["apiserver"].get("names", ())),
        "admin": files["admin"] and _is_in_time(manifest, "admin", now, _LEAF_MARGIN_S),
    }
    if all(usable.values()):
        return pki, False
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartError(
            f"cannot create {folder}: {(error.strerror or str(error)).lower()}"
        ) from error
    if ahead_s > 0:
        _log.warning(
            "certificates are not valid yet: the machine's clock was ahead when they were made, "
            "or is behind now; they "
            "are made anew",
            seconds=round(ahead_s),
        )
    maker = _Maker(folder, now)
    identity = pki.identity if files["ca"] else ""
    if files["ca"]:
        maker.load_authority()
    if not usable["ca"]:
        maker.make_authority()
        usable["apiserver"] = usable["admin"] = False
    if not usable["apiserver"]:
        # Names that an earlier start was asked for stay valid: no client that dials them is cut
        # off.
        old = tuple(manifest.get("apiserver", {}).get("names", ()))
        kept = tuple(name for name in old if name not in names)
        maker.make_server(names + kept[: max(0, NAMES_MAX - len(names))])
    if not usable["admin"]:
        maker.make_admin()
    if identity and "ca" in maker.entries:
        maker.entries["ca"]["origin"] = identity
    # The manifest comes last: a crash before this line makes the next start do it again.
    manifest.update(maker.entries)
    write_private(folder / "manifest.json", json.dumps(manifest, indent=1).encode())
    return pki, True


def kubeconfig(pki: Pki, server: str) -> bytes:
    """A kubeconfig (YAML) for the administrator with everything embedded; *server* is the URL to
    dial.
    """

    def embed(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    return f"""apiVersion: v1
kind: Config
clusters:
- name: sliceplane
  cluster:
    server: {server}
    certificate-authority-data: {embed(pki.ca_file)}
users:
- name: {ADMIN_NAME}
  user:
    client-certificate-data: {embed(pki.admin_file)}
    client-key-data: {embed(pki.admin_key_file)}
contexts:
- name: sliceplane
  context:
    cluster: sliceplane
    user: {ADMIN_NAME}
current-context: sliceplane
preferences: {{}}
""".encode()


def ensure_tokens(path: Path) -> None:
    """A static token file with one random token for the administrator, unless there is a file
    already.
    """
    if not path.exists():
        import secrets

        token = secrets.token_urlsafe(32)
        write_private(path, f'{token},{ADMIN_NAME},,"{ADMIN_GROUP}"\n'.encode())


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _are_those_of(folder: Path, manifest: dict[str, Any], stem: str) -> bool:
    """Returns True if certificate and key are the files that the manifest describes."""
    entry = manifest.get(stem)
    if not isinstance(entry, dict):
        return False
    try:
        digests = [_digest((folder / f"{stem}.{suffix}").read_bytes()) for suffix in ("crt", "key")]
    except OSError:
        return False
    return bool(entry.get("sha256") == digests)


def _is_in_time(manifest: dict[str, Any], stem: str, now: float, margin_s: float) -> bool:
    return bool(
        _begins(manifest, stem) <= now and manifest[stem].get("notAfter", 0) > now + margin_s
    )


def _begins(manifest: dict[str, Any], stem: str) -> float:
    """Returns the time from which it is valid; older manifests have only the end."""
    entry = manifest[stem]
    return float(entry.get("notBefore", entry.get("notAfter", 0) - _LIFETIME_S[stem]))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Maker:
    """Makes certificates; the only user of the cryptography library, imported when one is
    needed.
    """

    def __init__(self, folder: Path, now: float) -> None:
        self._folder = folder
        self._now = now
        self._authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
        self.entries: dict[str, dict[str, Any]] = {}

    def load_authority(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        path = self._folder / "ca.key"
        try:
            certificate = x509.load_pem_x509_certificate((self._folder / "ca.crt").read_bytes())
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError) as error:
            raise StartError(
                f"cannot read the certificate authority's key {path}: {error}"
            ) from error
        if (
            not isinstance(key, ec.EllipticCurvePrivateKey)
            or key.public_key() != certificate.public_key()
        ):
            raise StartError(f"the key {path} does not belong to ca.crt beside it")
        self._authority = (certificate, key)

    def make_authority(self) -> None:
        """With the key of the one that was loaded, if one was."""
        from cryptography import x509

        def shape(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
            constraints = x509.BasicConstraints(ca=True, path_length=0)
            return builder.add_extension(constraints, critical=True).add_extension(
                _usage(signs_certificates=True), True
            )

        self._authority = self._make("ca", "sliceplane-ca", "", shape)

    def make_server(self, names: tuple[str, ...]) -> None:
        from ipaddress import ip_address

        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        def general(name: str) -> x509.GeneralName:
            try:
                return x509.IPAddress(ip_address(name))
            except ValueError:
                return x509.DNSName(name)

        def shape(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
            purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
            alternatives = x509.SubjectAlternativeName([general(name) for name in names])
            return _leaf(builder, purpose).add_extension(alternatives, critical=False)

        self._make("apiserver", "sliceplane-apiserver", "", shape)
        self.entries["apiserver"]["names"] = list(names)

    def make_admin(self) -> None:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        def shape(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
            return _leaf(builder, x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]))

        self._make("admin", ADMIN_NAME, ADMIN_GROUP, shape)

    def _make(
        self,
        stem: str,
        common_name: str,
        organisation: str,
        shape: Callable[[x509.CertificateBuilder], x509.CertificateBuilder],
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        if stem == "ca" and self._authority is not None:
            key = self._authority[1]
        else:
            key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organisation:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
        subject = x509.Name(attributes)
        issuer = subject
        issuer_key = key
        if self._authority is not None and stem != "ca":
            issuer = self._authority[0].subject
            issuer_key = self._authority[1]
        start = datetime.fromtimestamp(int(self._now) - _BACKDATE_S, UTC)
        end = start + timedelta(seconds=_LIFETIME_S[stem])
        builder = (
            x509.CertificateBuilder(
                issuer, subject, key.public_key(), x509.random_serial_number(), start, end
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
                critical=False,
            )
        )
        certificate = shape(builder).sign(issuer_key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        form = serialization.PrivateFormat.PKCS8
        plain = serialization.NoEncryption()
        key_pem = key.private_bytes(serialization.Encoding.PEM, form, plain)
        write_private(self._folder / f"{stem}.key", key_pem)
        write_private(self._folder / f"{stem}.crt", pem)
        self.entries[stem] = {
            "notBefore": int(start.timestamp()),
            "notAfter": int(end.timestamp()),
            "sha256": [_digest(pem), _digest(key_pem)],
        }
        return certificate, key


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _leaf(
    builder: x509.CertificateBuilder, purpose: x509.ExtendedKeyUsage
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(purpose, critical=False)
    )
