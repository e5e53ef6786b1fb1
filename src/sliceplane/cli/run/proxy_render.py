"""``sliceplane proxy render``: the rules that a node proxy would write on a node, printed and not
written.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import note, show
from sliceplane.cli.cluster import TargetCluster, attempt, cluster_command
from sliceplane.cli.flags import choice, option, string, switch
from sliceplane.cli.run.flags.proxy import RENDERED
from sliceplane.cli.values import NETWORKS
from sliceplane.node.configuration.fields import BACK_ENDS

if TYPE_CHECKING:
    from sliceplane.kit.ip import Family


@cluster_command(
    "render",
    output=False,
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
@choice(
    "--proxy-mode",
    "What to render: rules as text; kernelspace: HCN policies of Windows as JSON.",
    (*BACK_ENDS, *RENDERED),
    "nftables",
)
@option(
    "-f --filename files",
    "Objects in YAML or JSON, - for standard input; may be given several times.  "
    "[default: ask the API server]",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    multiple=True,
    metavar="FILE",
)
@string("--hostname-override", "NODE", "The node's name.  [default: the host name]")
@choice("--ip-family families", "May be given twice.", ("IPv4", "IPv6"), ("IPv4",), multiple=True)
@option(
    "--cluster-cidr",
    "Ranges of Pod IPs, for --detect-local-mode ClusterCIDR.",
    "",
    type=NETWORKS,
)
@choice(
    "--detect-local-mode",
    "How traffic of the node's Pods is told from others'.",
    ("ClusterCIDR", "NodeCIDR"),
    "ClusterCIDR",
)
@switch("--masquerade-all", "Masquerade whatever goes to a cluster IP.")
def command(
    *, cluster: TargetCluster, files: tuple[Path, ...], hostname_override: str, **flags: Any
) -> None:
    """Print the rules that a node would have, and change nothing.

    Reads Services, EndpointSlices, Nodes and ServiceCIDRs, from files or from an API server (list
    only). Same objects, same bytes: two answers can be compared with diff. Needs no root.
    """
    from sliceplane.node.context import RulesConfig
    from sliceplane.node.io.render import RenderError, objects_from, objects_of, render
    from sliceplane.node.plane import NodePlaneConfig

    if files and (cluster.kubeconfig is not None or cluster.context is not None):
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
        objects = cluster.query(
            lambda client, _: objects_from(client, node_name), RenderError, exit_code=1
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
