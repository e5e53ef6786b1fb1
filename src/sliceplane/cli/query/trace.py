"""``sliceplane trace``: shows where a packet goes, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import BAD, GOOD, Output
from sliceplane.cli.cluster import TargetCluster, cluster_command
from sliceplane.cli.flags import choice, option, string, switch
from sliceplane.cli.run.serving import gates_of
from sliceplane.cli.values import NETWORKS, NODE_PORT_ADDRESSES

if TYPE_CHECKING:
    from sliceplane.diagnose.trace.answer import TraceAnswer, XdsTraceAnswer
    from sliceplane.diagnose.trace.inquiry import TracedProxy
    from sliceplane.watch.io.base import Client


@cluster_command(
    "trace",
    scope="namespace",
    examples=[
        ("from this machine to a Service", "sliceplane trace --to web"),
        ("from a Pod to a Service", "sliceplane trace --from web-7d8f-x --to api.shop:http"),
        (
            "from outside to a node port",
            "sliceplane trace --from 203.0.113.9 --to 192.168.1.11:30080 --node node-1",
        ),
        (
            "what Envoy or gRPC on a node gets",
            "sliceplane trace --via xds --client node-1 --to api.shop:http",
        ),
    ],
)
@string(
    "--from source",
    "IP|POD|node/NODE|outside",
    "The sender: an address, a Pod or a Node by its name, a client outside.  [default: "
    "this machine if it is a Node, else outside]",
)
@option(
    "--to target",
    "A cluster IP, external IP, load balancer address or node port; or a Service by its name.",
    required=True,
    metavar="IP:PORT|SERVICE[.NAMESPACE][:PORT]",
)
@option(
    "--protocol",
    "The protocol of the packet.  [default: the Service's, else tcp]",
    type=click.Choice(("tcp", "udp", "sctp"), case_sensitive=False),
)
@choice(
    "--via",
    "Through the rules of a node, or from the xDS server to Envoy and gRPC.",
    ("proxy", "xds"),
    "proxy",
)
@string(
    "--client",
    "NODE|pod/POD|zone/ZONE",
    "With --via xds: location of the client.  [default: none]",
)
@string(
    "--cluster-domain domain",
    "NAME",
    "With --via xds: the zone of the cluster's names.",
    "cluster.local",
)
@string("--node", "NAME", "The node whose rules apply.  [default: the sender's node]")
@option("--cluster-cidr", "As the proxy has it.", "", type=NETWORKS)
@choice(
    "--detect-local-mode",
    "As the proxy has it.",
    ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
    "ClusterCIDR",
)
@switch("--masquerade-all", "As the proxy has it.")
@option("--nodeport-addresses", "As the proxy has it.", "primary", type=NODE_PORT_ADDRESSES)
@string("--feature-gates", "NAME=BOOL,...", "As the proxy has them.")
@string("--emulated-version", "RELEASE", "As the proxy has it.")
def command(
    *,
    cluster: TargetCluster,
    source: str,
    target: str,
    node: str,
    via: str,
    output: Output,
    **flags: Any,
) -> None:
    """Show where the packet that opens a connection goes, and why.

    Builds the rules of the node's proxy from the API server's objects, sends the packet through
    them, and prints the verdict, every endpoint with its share, and the Service, slice, hint and
    policy that led there. Read-only (get and list of Services, EndpointSlices, Nodes, Pods and
    ServiceCIDRs), on any cluster; does not read the kernel.

    With sliceplane.dev/Measured or Balanced also: the part of the connections that start in each
    zone, and the load of an endpoint there now, as decided, and with PreferSameZone.

    With --via xds: the endpoints that a client of xDS gets there, and those that it picks (get and
    list of Services, EndpointSlices, Nodes and Pods).

    Exit code 0: it arrives; 1: it is dropped or rejected, or there is no endpoint; 2: no answer,
    stderr says why.
    """
    from sliceplane.diagnose.io import tracing
    from sliceplane.diagnose.trace import text, xds
    from sliceplane.diagnose.trace.question import Unanswerable

    if via == "xds" and (source or node):
        raise click.UsageError("--via xds takes a --client, not --from or --node")
    if via == "proxy" and flags["client"]:
        raise click.UsageError("--client goes with --via xds")

    async def by_proxy(client: Client, namespace: str) -> TraceAnswer:
        question = await tracing.question_of(
            client, source, target, protocol=flags["protocol"], node=node, namespace=namespace
        )
        return await tracing.trace(client, question, _settings(flags))

    async def by_xds(client: Client, namespace: str) -> XdsTraceAnswer:
        question = await tracing.xds_question_of(
            client, flags["client"], target, namespace=namespace, domain=flags["domain"]
        )
        return await tracing.trace_xds(client, question)

    answer: TraceAnswer | XdsTraceAnswer
    if via == "xds":
        answer = of_client = cluster.query(by_xds, Unanswerable)
        output.show(answer.as_document, lambda width: xds.as_text(of_client, width))
    else:
        answer = of_packet = cluster.query(by_proxy, Unanswerable)
        output.show(answer.as_document, lambda width: text.as_text(of_packet, width))
    raise SystemExit(GOOD if answer.arrives else BAD)


def _settings(flags: dict[str, Any]) -> TracedProxy:
    from sliceplane.diagnose.trace.inquiry import TracedProxy
    from sliceplane.diagnose.trace.route import POD_INTERFACE
    from sliceplane.node.context import RulesConfig

    rules = RulesConfig(
        masquerade_all=flags["masquerade_all"],
        detect_local_mode=flags["detect_local_mode"],
        cluster_cidrs=flags["cluster_cidr"],
        pod_bridge_interface=POD_INTERFACE,
        pod_interface_name_prefix=POD_INTERFACE,
        node_port_addresses=flags["nodeport_addresses"],
    )
    return TracedProxy(rules, gates_of(flags["feature_gates"], flags["emulated_version"]))
