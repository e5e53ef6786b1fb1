"""``sliceplane trace``: where does this packet go, and why."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from sliceplane.cli.answers import Form, output_option, rendered
from sliceplane.cli.cluster import asked, cluster_options, connect
from sliceplane.cli.options import Command
from sliceplane.cli.process import screen_width, show
from sliceplane.cli.serving import gates_of
from sliceplane.cli.values import NetworksType, NodePortAddressesType

if TYPE_CHECKING:
    from sliceplane.shell.transport.base import Client
    from sliceplane.shell.transport.kubeconfig import Connection
    from sliceplane.tracer.answer import Answer
    from sliceplane.tracer.inquiry import ProxySettings
    from sliceplane.tracer.question import Question

#: exit codes
ARRIVES = 0
REFUSED = 1
NO_ANSWER = 2


@click.command("trace", cls=Command, examples=[
    ("from a Pod to a Service", "sliceplane trace --from web-7d8f-x --to api.shop:http"),
    ("from outside to a node port", "sliceplane trace --from 203.0.113.9 --to 192.168.1.11:30080 --node node-1"),
])  # fmt: skip
@click.option("--from", "source", required=True, metavar="IP|POD|node/NODE",
    help="Who sends: an address, a Pod or a Node by its name.")  # fmt: skip
@click.option("--to", "target", required=True, metavar="IP:PORT|SERVICE[.NAMESPACE][:PORT]",
    help="A cluster IP, external IP, load balancer address or node port; or a Service by its name.")  # fmt: skip
@click.option("-n", "--namespace", default="", metavar="NAME",
    help="Of a Pod or Service that is named without one.  [default: the kubeconfig's]")  # fmt: skip
@click.option("--protocol", type=click.Choice(("tcp", "udp", "sctp"), case_sensitive=False), default=None,
    help="What the packet is of.  [default: the Service's, else tcp]")  # fmt: skip
@click.option("--node", default="", metavar="NAME", help="Whose rules.  [default: the sender's node]")
@output_option
@cluster_options
@click.option("--cluster-cidr", type=NetworksType(), default="", metavar="CIDR[,CIDR]", help="As the proxy has it.")
@click.option("--detect-local-mode", default="ClusterCIDR", show_default=True, help="As the proxy has it.",
    type=click.Choice(("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")))  # fmt: skip
@click.option("--masquerade-all", is_flag=True, help="As the proxy has it.")
@click.option("--nodeport-addresses", type=NodePortAddressesType(), default="primary", show_default=True,
    metavar="CIDR,...", help="As the proxy has it.")  # fmt: skip
@click.option("--feature-gates", default="", metavar="NAME=BOOL,...", help="As the proxy has them.")
@click.option("--emulated-version", default="", metavar="RELEASE", help="As the proxy has it.")
def command(*, source: str, target: str, node: str, output: Form, **flags: Any) -> None:
    """Where does the packet that opens a connection go, and why.

    Builds the rules that the node's proxy would have from what the API server says, sends the packet through them, and
    tells the verdict, every endpoint with its share, and which Service, slice, hint and policy led there.  Reads only
    (get and list of Services, EndpointSlices, Nodes, Pods and ServiceCIDRs), on any cluster; the kernel is not looked
    at.

    Exit code 0: it arrives; 1: it is dropped or rejected; 2: no answer, stderr says why.
    """
    from sliceplane.tracer.question import Unanswerable

    settings = _settings(flags)

    def answer_of_server() -> Answer:
        connection = connect(flags["kubeconfig"], flags["context"])
        namespace = flags["namespace"] or connection.namespace
        return asyncio.run(_trace(connection, _Asked(source, target, node, flags["protocol"], namespace), settings))

    answer = asked(answer_of_server, Unanswerable, exit_code=NO_ANSWER)
    show(_rendered(answer, output), exit_code=NO_ANSWER)
    raise SystemExit(ARRIVES if answer.arrives else REFUSED)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question in the words of the command line."""

    source: str
    target: str
    node: str
    protocol: Any
    namespace: str


async def _question(client: Client, asked: _Asked) -> Question:
    from sliceplane.shell.tools.tracing import address_of
    from sliceplane.tracer.question import AddressTarget, Question, family_of, parse_source, parse_to

    source = parse_source(asked.source, asked.namespace)
    to = parse_to(asked.target, asked.namespace)
    if not isinstance(source, str):
        source = await address_of(client, source, family_of(to.ip) if isinstance(to, AddressTarget) else None)
    return Question(source, to, asked.protocol.upper() if asked.protocol else None, asked.node.lower())


def _settings(flags: dict[str, Any]) -> ProxySettings:
    from sliceplane.proxy.surroundings import RulesConfig
    from sliceplane.tracer.inquiry import ProxySettings
    from sliceplane.tracer.route import POD_INTERFACE

    rules = RulesConfig(
        masquerade_all=flags["masquerade_all"],
        detect_local_mode=flags["detect_local_mode"],
        cluster_cidrs=flags["cluster_cidr"],
        pod_bridge_interface=POD_INTERFACE,
        pod_interface_name_prefix=POD_INTERFACE,
        node_port_addresses=flags["nodeport_addresses"],
    )
    return ProxySettings(rules, gates_of(flags["feature_gates"], flags["emulated_version"]))


def _rendered(answer: Answer, output: Form) -> str:
    from sliceplane.tracer.text import as_text

    return rendered(output, answer.as_document, lambda: as_text(answer, screen_width()))


async def _trace(connection: Connection, asked: _Asked, settings: ProxySettings) -> Answer:
    from sliceplane.shell.tools.tracing import trace
    from sliceplane.shell.transport.http import HttpClient

    client = HttpClient(connection)
    try:
        return await trace(client, await _question(client, asked), settings)
    finally:
        await client.close()
