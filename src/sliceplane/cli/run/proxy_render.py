"""``sliceplane proxy render``: the rules that a node proxy would write on a node, printed and not
written.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import note, show
from sliceplane.cli.cluster import ask, attempt, cluster_options
from sliceplane.cli.options import Command
from sliceplane.cli.run.proxy_flags import RENDERED
from sliceplane.cli.values import NetworksType
from sliceplane.node.configuration.fields import BACK_ENDS

if TYPE_CHECKING:
    from sliceplane.kit.ip import Family


@click.command(
    "render",
    cls=Command,
    examples=[
        (
            "what a node of this cluster should have",
            "sliceplane proxy render --hostname-override node-1",
        ),
        (
            "what a change would make of the rules",
            "kubectl get svc,endpointslices -Ao yaml | sliceplane proxy render -f -",
        ),
    ],
)
@click.option(
    "--proxy-mode",
    type=click.Choice((*BACK_ENDS, *RENDERED)),
    default="nftables",
    show_default=True,
    help="What to render: rules as text; kernelspace: HCN policies of Windows as JSON.",
)
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Objects in YAML or JSON, - for standard input; may be given several times.  "
    "[default: ask the API server]",
)
@cluster_options
@click.option(
    "--hostname-override",
    default="",
    metavar="NODE",
    help="The node's name.  [default: the host name]",
)
@click.option(
    "--ip-family",
    "families",
    type=click.Choice(("IPv4", "IPv6")),
    multiple=True,
    default=("IPv4",),
    show_default=True,
    help="May be given twice.",
)
@click.option(
    "--cluster-cidr",
    type=NetworksType(),
    default="",
    metavar="CIDR[,CIDR]",
    help="Ranges of Pod IPs, for --detect-local-mode ClusterCIDR.",
)
@click.option(
    "--detect-local-mode",
    type=click.Choice(("ClusterCIDR", "NodeCIDR")),
    default="ClusterCIDR",
    show_default=True,
    help="How traffic of the node's Pods is told from others'.",
)
@click.option("--masquerade-all", is_flag=True, help="Masquerade whatever goes to a cluster IP.")
def command(
    *,
    files: tuple[Path, ...],
    kubeconfig: Path | None,
    context: str | None,
    hostname_override: str,
    **flags: Any,
) -> None:
    """Print the rules that a node would have, and change nothing.

    Reads Services, EndpointSlices, Nodes and ServiceCIDRs, from files or from an API server (list
    only). Same objects, same bytes: two answers can be compared with diff. Needs no root.
    """
    from sliceplane.node.io.render import RenderError, objects_from, objects_of, render
    from sliceplane.node.plane import NodePlaneConfig
    from sliceplane.node.surroundings import RulesConfig

    if files and (kubeconfig is not None or context is not None):
        raise click.UsageError(
            "--filename and --kubeconfig or --context: only one of them says where objects are"
        )
    node_name = (hostname_override.strip() or socket.gethostname()).lower()
    rules = RulesConfig(
        masquerade_all=flags["masquerade_all"],
        detect_local_mode=flags["detect_local_mode"],
        cluster_cidrs=flags["cluster_cidr"],
    )

    if files:
        objects = attempt(
            lambda: objects_of([_read(path) for path in files], node_name), RenderError
        )
    else:
        objects = ask(
            kubeconfig, context, lambda client, _: objects_from(client, node_name), RenderError
        )
    if objects.node is None:
        note(f"Note: there are no Nodes: the rules are those of a node {node_name} without a zone")
    config = NodePlaneConfig(node_name=node_name, rules=rules)
    family: Family
    for family in sorted(set(flags["families"])):
        show(render(flags["proxy_mode"], family, config, objects), newline=False)


def _read(path: Path) -> tuple[str, bytes]:
    from sliceplane.kit.io.files import MANIFEST_BYTES_MAX, read_bytes
    from sliceplane.node.io.render import RenderError

    name = "standard input" if str(path) == "-" else str(path)
    try:
        return name, read_bytes(path, MANIFEST_BYTES_MAX)
    except OSError as error:
        raise RenderError(f"{name} cannot be read: {error.strerror}") from error
