"""The flags of storage in etcd, with upstream's names, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec.structs

from sliceplane.cli.options import with_options
from sliceplane.cli.values import DurationType, given_flags

if TYPE_CHECKING:
    from sliceplane.server.io.config import PlaneConfig

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: what says how to use etcd, and so nothing without ``--etcd``
_COMPANIONS = (
    "etcd_cafile",
    "etcd_certfile",
    "etcd_keyfile",
    "etcd_prefix",
    "etcd_compaction_interval",
)


class ServersType(click.ParamType[tuple[str, ...]]):
    """``URL,...``: http or https, a host and a port."""

    name = "url,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(
            self._server(text.strip(), param, ctx) for text in str(value).split(",") if text.strip()
        )

    def _server(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            url = urlsplit(text)
            good = (
                url.scheme in ("http", "https")
                and url.hostname
                and url.port
                and not url.path.strip("/")
            )
        except ValueError:
            good = False
        if not good:
            self.fail(f"{text!r} is not a URL such as https://10.0.0.1:2379", param, ctx)
        return text.rstrip("/")


#: they reach the command as members of one dictionary, for ``with_etcd``
etcd_options = with_options(
    click.option(
        "--etcd-servers",
        "--etcd",
        "etcd_servers",
        type=ServersType(),
        default="",
        help="Members of an etcd cluster that keeps everything, for several servers at once.  "
        "[default: a file in "
        "the data folder, for one server]",
    ),
    click.option(
        "--etcd-cafile", type=_FILE, help="Authority (PEM) of the etcd members' certificates."
    ),
    click.option("--etcd-certfile", type=_FILE, help="Client certificate (PEM) for etcd."),
    click.option("--etcd-keyfile", type=_FILE, help="Its key."),
    click.option(
        "--etcd-prefix",
        default="/sliceplane",
        show_default=True,
        metavar="PATH",
        help="What all keys in etcd begin with; the same for all servers of one plane.",
    ),
    click.option(
        "--etcd-compaction-interval",
        type=DurationType(),
        default="5m",
        show_default=True,
        help=(
            "How often etcd is made to forget old revisions; they are kept for one to two "
            "intervals.  0: never."
        ),
    ),
)


def with_etcd(config: PlaneConfig, flags: dict[str, Any]) -> PlaneConfig:
    """*config* with what the values of ``etcd_options`` ask for."""
    if not flags["etcd_servers"]:
        # Who forgot --etcd would have a server that keeps everything to itself, and seems to work.
        for given in given_flags(_COMPANIONS):
            raise click.UsageError(f"{given} says how to use etcd; add --etcd")
        return config
    if bool(flags["etcd_certfile"]) != bool(flags["etcd_keyfile"]):
        raise click.UsageError("--etcd-certfile and --etcd-keyfile go together")
    from sliceplane.server.io.datadir import MEMORY

    if config.data_dir == MEMORY:
        raise click.UsageError(
            "--etcd needs a data directory: what servers of one plane share, pki/ and tokens.csv, "
            "would be lost"
        )
    if not flags["etcd_prefix"].strip("/"):
        raise click.BadParameter("it must not be empty", param_hint="'--etcd-prefix'")
    from sliceplane.server.io.storage.etcd.client import EtcdConfig

    etcd = EtcdConfig(
        servers=flags["etcd_servers"],
        prefix=flags["etcd_prefix"],
        ca_file=flags["etcd_cafile"],
        cert_file=flags["etcd_certfile"],
        key_file=flags["etcd_keyfile"],
        compaction_interval_s=flags["etcd_compaction_interval"],
    )
    return msgspec.structs.replace(config, etcd=etcd)
