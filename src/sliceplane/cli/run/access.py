"""The flags of authentication, of limits and of the end, with upstream's names, and what they
mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec.structs

from sliceplane.cli.flags import EXISTING_FILE, duration, number, option, string, with_options
from sliceplane.cli.values import ADDRESS, ParsedType, SwitchType, names_in

if TYPE_CHECKING:
    from sliceplane.kit.io.tls.acceptor import FrontProxies
    from sliceplane.server.io.config import PlaneConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _admission(text: str) -> frozenset[str]:
    """Returns the optional admission plug-ins of a list, which may also name those that are always
    on.
    """
    from sliceplane.server.registry.config import OPTIONAL_PLUGINS, PLUGINS_ALWAYS_ON

    names = set(names_in(text))
    unknown = sorted(names - {*PLUGINS_ALWAYS_ON, *OPTIONAL_PLUGINS})
    if unknown:
        there = ", ".join((*OPTIONAL_PLUGINS, *PLUGINS_ALWAYS_ON))
        raise ValueError(
            f"there is no admission plug-in {unknown[0]!r} here; there are {there} (the last three "
            "are always on)"
        )
    return frozenset(names & set(OPTIONAL_PLUGINS))


#: of servers and relays, for ``front_proxies``
front_proxy_options = (
    option(
        "--requestheader-client-ca-file",
        "Authorities (PEM) of front proxies, which name users in headers (X-Remote-User).",
        type=EXISTING_FILE,
    ),
    string(
        "--requestheader-allowed-names",
        "NAME,...",
        "Common names of front proxies.  [default: all of these authorities]",
    ),
)

#: they reach the command as members of one dictionary, for ``with_access``
access_options = with_options(
    option(
        "--enable-admission-plugins",
        "Admission to switch on: DenyServiceExternalIPs.",
        "",
        type=ParsedType("name,...", _admission),
    ),
    option("--advertise-address", "IP that default/kubernetes leads to.", type=ADDRESS),
    option(
        "--token-auth-file",
        "Static tokens (CSV: token,user,uid,groups) instead of our own.",
        type=EXISTING_FILE,
    ),
    option(
        "--client-ca-file",
        "Further authorities (PEM) whose client certificates are trusted.",
        type=EXISTING_FILE,
    ),
    *front_proxy_options,
    option(
        "--anonymous-auth",
        "Requests without credentials are those of system:anonymous; false refuses them (401).",
        True,
        type=SwitchType(),
    ),
    string(
        "--service-account-issuer",
        "URL",
        "What service account tokens name as their issuer.",
        "https://kubernetes.default.svc.cluster.local",
    ),
    option(
        "--service-account-signing-key-file",
        "Private key (PEM; RSA or P-256, P-384, P-521) that signs them.  [default: one of our own]",
        type=EXISTING_FILE,
    ),
    option(
        "--service-account-key-file",
        "Further keys (PEM) whose tokens are accepted; may be given several times.",
        type=EXISTING_FILE,
        multiple=True,
    ),
    string(
        "--service-account-jwks-uri",
        "URL",
        "Where others find our keys.  [default: /openid/v1/jwks of this server]",
    ),
    string(
        "--api-audiences", "NAME,...", "Whom tokens for this server are for.  [default: the issuer]"
    ),
    duration(
        "--shutdown-delay-duration",
        "A stop begins with this time, in which /readyz fails and requests are served.",
        "0s",
    ),
    number(
        "--max-requests-inflight",
        "Reads that are worked on at a time, shared among priority levels; others wait, "
        "then get 429.",
        400,
        least=1,
    ),
    number(
        "--max-mutating-requests-inflight",
        "Writes that are worked on at a time, likewise.",
        200,
        least=1,
    ),
)


def front_proxies(flags: dict[str, Any]) -> FrontProxies | None:
    """Returns what the values of ``front_proxy_options`` ask for."""
    from sliceplane.kit.io.tls.acceptor import FrontProxies

    file, names = flags["requestheader_client_ca_file"], flags["requestheader_allowed_names"]
    return None if file is None else FrontProxies(file, frozenset(names_in(names)))


def with_access(config: PlaneConfig, flags: dict[str, Any]) -> PlaneConfig:
    """*config* with what *flags* (among others the values of ``access_options``) ask for."""
    from sliceplane.server.io.keys.token_keys import TokenConfig
    from sliceplane.server.io.requests.limits import Limits

    if not flags["service_account_issuer"]:
        raise click.BadParameter("it must not be empty", param_hint="'--service-account-issuer'")
    tokens = TokenConfig(
        issuer=flags["service_account_issuer"],
        audiences=names_in(flags["api_audiences"]),
        signing_key_file=flags["service_account_signing_key_file"],
        key_files=flags["service_account_key_file"],
    )
    return msgspec.structs.replace(
        config,
        advertise_address=flags["advertise_address"] or "",
        admission_plugins=flags["enable_admission_plugins"],
        token_auth_file=flags["token_auth_file"],
        client_ca_file=flags["client_ca_file"],
        front_proxies=front_proxies(flags),
        anonymous=flags["anonymous_auth"],
        tokens=tokens,
        jwks_url=flags["service_account_jwks_uri"],
        shutdown_delay_s=flags["shutdown_delay_duration"],
        limits=Limits(
            reads_max=flags["max_requests_inflight"],
            writes_max=flags["max_mutating_requests_inflight"],
        ),
    )
