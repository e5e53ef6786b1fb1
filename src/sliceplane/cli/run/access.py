"""The flags of authentication, of limits and of the end, with upstream's names, and what they
mean.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec.structs

from sliceplane.cli.options import with_options
from sliceplane.cli.values import AddressType, DurationType, SwitchType

if TYPE_CHECKING:
    from sliceplane.server.io.config import PlaneConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class AdmissionType(click.ParamType[frozenset[str]]):
    """Names of admission plug-ins; those that are always on may be among them."""

    name = "name,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        from sliceplane.server.registry.config import OPTIONAL_PLUGINS, PLUGINS_ALWAYS_ON

        names = {name.strip() for name in str(value).split(",") if name.strip()}
        for name in sorted(names - {*PLUGINS_ALWAYS_ON, *OPTIONAL_PLUGINS}):
            there = ", ".join((*OPTIONAL_PLUGINS, *PLUGINS_ALWAYS_ON))
            self.fail(
                f"there is no admission plug-in {name!r} here; there are {there} (the last three "
                "are always on)",
                param,
                ctx,
            )
        return frozenset(names & set(OPTIONAL_PLUGINS))


#: they reach the command as members of one dictionary, for ``with_access``
access_options = with_options(
    click.option(
        "--enable-admission-plugins",
        type=AdmissionType(),
        default="",
        metavar="NAME,...",
        help="Admission to switch on: DenyServiceExternalIPs.",
    ),
    click.option(
        "--advertise-address", type=AddressType(), help="IP that default/kubernetes leads to."
    ),
    click.option(
        "--token-auth-file",
        type=_FILE,
        help="Static tokens (CSV: token,user,uid,groups) instead of our own.",
    ),
    click.option(
        "--client-ca-file",
        type=_FILE,
        help="Further authorities (PEM) whose client certificates are trusted.",
    ),
    click.option(
        "--anonymous-auth",
        type=SwitchType(),
        default=True,
        show_default=True,
        help="Requests without credentials are those of system:anonymous; false refuses them (401).",
    ),
    click.option(
        "--service-account-issuer",
        default="https://kubernetes.default.svc.cluster.local",
        show_default=True,
        metavar="URL",
        help="What service account tokens name as their issuer.",
    ),
    click.option(
        "--service-account-signing-key-file",
        type=_FILE,
        help=(
            "Private key (PEM; RSA or P-256, P-384, P-521) that signs them.  [default: one of our "
            "own]"
        ),
    ),
    click.option(
        "--service-account-key-file",
        type=_FILE,
        multiple=True,
        help="Further keys (PEM) whose tokens are accepted; may be given several times.",
    ),
    click.option(
        "--service-account-jwks-uri",
        default="",
        metavar="URL",
        help="Where others find our keys.  [default: /openid/v1/jwks of this server]",
    ),
    click.option(
        "--api-audiences",
        default="",
        metavar="NAME,...",
        help="Whom tokens for this server are for.  [default: the issuer]",
    ),
    click.option(
        "--shutdown-delay-duration",
        type=DurationType(),
        default="0s",
        show_default=True,
        help="A stop begins with this time, in which /readyz fails and requests are served.",
    ),
    click.option(
        "--max-requests-inflight",
        type=click.IntRange(1),
        default=400,
        show_default=True,
        help=(
            "Reads that are worked on at a time, shared among priority levels; others wait, then "
            "get 429."
        ),
    ),
    click.option(
        "--max-mutating-requests-inflight",
        type=click.IntRange(1),
        default=200,
        show_default=True,
        help="Writes that are worked on at a time, likewise.",
    ),
)


def with_access(config: PlaneConfig, flags: dict[str, Any]) -> PlaneConfig:
    """*config* with what *flags* (among others the values of ``access_options``) ask for."""
    from sliceplane.server.io.keys.token_keys import TokenConfig
    from sliceplane.server.io.requests.limits import Limits

    if not flags["service_account_issuer"]:
        raise click.BadParameter("it must not be empty", param_hint="'--service-account-issuer'")
    tokens = TokenConfig(
        issuer=flags["service_account_issuer"],
        audiences=tuple(name.strip() for name in flags["api_audiences"].split(",") if name.strip()),
        signing_key_file=flags["service_account_signing_key_file"],
        key_files=flags["service_account_key_file"],
    )
    return msgspec.structs.replace(
        config,
        advertise_address=flags["advertise_address"] or "",
        admission_plugins=flags["enable_admission_plugins"],
        token_auth_file=flags["token_auth_file"],
        client_ca_file=flags["client_ca_file"],
        anonymous=flags["anonymous_auth"],
        tokens=tokens,
        jwks_url=flags["service_account_jwks_uri"],
        shutdown_delay_s=flags["shutdown_delay_duration"],
        limits=Limits(
            reads_max=flags["max_requests_inflight"],
            writes_max=flags["max_mutating_requests_inflight"],
        ),
    )
