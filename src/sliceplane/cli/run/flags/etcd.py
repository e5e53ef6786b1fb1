"""The flags of storage in etcd, with upstream's names, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
import msgspec.structs

from sliceplane.cli.flags import EXISTING_FILE, duration, option, string, with_options
from sliceplane.cli.values import ParsedType, flags_used, names_in

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


def _servers(text: str) -> tuple[str, ...]:
    """Returns the URLs of a list: http or https, a host and a port."""
    return tuple(map(_server, names_in(text)))


def _server(text: str) -> str:
    try:
        url = urlsplit(text)
        is_server = (
            url.scheme in ("http", "https")
            and url.hostname
            and url.port
            and not url.path.strip("/")
        )
    except ValueError:
        is_server = False
    if not is_server:
        raise ValueError(f"{text!r} is not a URL such as https://10.0.0.1:2379")
    return text.rstrip("/")


#: they reach the command as members of one dictionary, for ``with_etcd``
etcd_options = with_options(
    option(
        "--etcd-servers --etcd etcd_servers",
        "Members of an etcd cluster that keeps everything, for several servers at once.  "
        "[default: a file in the data folder, for one server]",
        "",
        type=ParsedType("url,...", _servers),
    ),
    option(
        "--etcd-cafile", "Authority (PEM) of the etcd members' certificates.", type=EXISTING_FILE
    ),
    option("--etcd-certfile", "Client certificate (PEM) for etcd.", type=EXISTING_FILE),
    option("--etcd-keyfile", "Its key.", type=EXISTING_FILE),
    string(
        "--etcd-prefix",
        "PATH",
        "What all keys in etcd begin with; the same for all servers of one plane.",
        "/sliceplane",
    ),
    duration(
        "--etcd-compaction-interval",
        "How often etcd is made to forget old revisions; they are kept for one to two "
        "intervals.  0: never.",
        "5m",
    ),
)


def with_etcd(config: PlaneConfig, flags: dict[str, Any]) -> PlaneConfig:
    """*config* with what the values of ``etcd_options`` ask for."""
    if not flags["etcd_servers"]:
        # Who forgot --etcd would have a server that keeps everything to itself, and seems to work.
        for flag in flags_used(_COMPANIONS):
            raise click.UsageError(f"{flag} says how to use etcd; add --etcd")
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
