"""What is read of a server, in which pages, and what happens where it is not given."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.trace.traced import (
    CLIENT,
    NODES,
    PODS,
    RANGE,
    SENDER,
    TWO,
    pod,
    service,
    shares,
    slice_of,
)

from sliceplane.api import codec
from sliceplane.api.core import Endpoints, Pod
from sliceplane.api.errors import expired, forbidden, not_found
from sliceplane.api.gates import Gates
from sliceplane.api.meta import Object
from sliceplane.api.requests import Selection
from sliceplane.api.scheme import (
    EndpointSlices,
    EndpointsObjects,
    Nodes,
    Pods,
    Resource,
    ServiceCIDRs,
    Services,
)
from sliceplane.diagnose.io.tracing import question_of, trace, trace_xds, xds_question_of
from sliceplane.diagnose.trace.answer import TraceAnswer
from sliceplane.diagnose.trace.inquiry import TracedProxy
from sliceplane.diagnose.trace.question import Question, Unanswerable, parse_to
from sliceplane.watch.io.base import ListPage

ENDPOINTS = codec.decode(
    codec.encode(
        {
            "metadata": {"namespace": "prod", "name": "api"},
            "subsets": [
                {
                    "addresses": [{"ip": "10.1.1.1"}],
                    "notReadyAddresses": [{"ip": "10.1.1.2"}],
                    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                }
            ],
        }
    ),
    Endpoints,
)


class Server:
    """Lists what it has, two objects a page; remembers what it was asked; refuses what it is told
    to refuse.
    """

    def __init__(self, **refuses: Exception) -> None:
        self.has: dict[str, tuple[Object, ...]] = {
            Services.plural: (
                service(),
                service("web", "10.96.0.11"),
                service("dns", "10.96.0.12"),
            ),
            Nodes.plural: NODES,
            Pods.plural: (SENDER,),
            ServiceCIDRs.plural: (RANGE,),
            EndpointSlices.plural: (slice_of("api-1", [*TWO]), slice_of("web-1", [*TWO], of="web")),
            EndpointsObjects.plural: (ENDPOINTS,),
        }
        self.asked: list[tuple[str, str]] = []
        self.refuses = refuses

    async def list(self, selection: Selection, *, limit: int, continue_token: str = "") -> ListPage:
        assert limit == 500
        resource, label, field = (
            selection.resource,
            selection.label_selector,
            selection.field_selector,
        )
        selectors = " ".join(text for text in (selection.namespace, label, field) if text)
        self.asked.append((resource.plural, selectors))
        refused = self.refuses.pop(f"once_{resource.plural}", None) if continue_token else None
        refused = refused or self.refuses.get(resource.plural)
        if refused is not None:
            raise refused
        found = [
            each
            for each in self.has[resource.plural]
            if label in ("", f"kubernetes.io/service-name={owner(each)}")
        ]
        if field and resource is Pods:
            found = [
                pod
                for pod in found
                if isinstance(pod, Pod) and field == f"status.podIP={pod.status.pod_ip}"
            ]
        start = int(continue_token or 0)
        rest = str(start + 2) if len(found) > start + 2 else ""
        return ListPage(tuple(codec.encode(each) for each in found[start : start + 2]), "7", rest)

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        self.asked.append((resource.plural, f"{namespace}/{name}"))
        for each in self.has[resource.plural]:
            if (each.metadata.namespace, each.metadata.name) == (namespace, name):
                return codec.encode(each)
        raise not_found(resource.plural, resource.group, name)


def owner(each: Object) -> str:
    return (each.metadata.labels or {}).get("kubernetes.io/service-name", "")


async def asked(
    server: Any, *, to: str = "10.96.0.10:80", source: str = CLIENT, node: str = "", gates: str = ""
) -> TraceAnswer:
    question = Question(source, parse_to(to), node=node)
    return await trace(server, question, TracedProxy(PODS, Gates.parse(gates)))


async def test_slices_are_read_of_the_service_in_question_alone() -> None:
    server = Server()
    answer = await asked(server)
    assert shares(answer) == {"10.1.1.1": "1/2", "10.1.2.1": "1/2"}
    of_slices = [selectors for plural, selectors in server.asked if plural == "endpointslices"]
    assert of_slices == ["prod kubernetes.io/service-name=api"]
    of_pods = [selectors for plural, selectors in server.asked if plural == "pods"]
    assert of_pods == [f"status.podIP={CLIENT}", "status.podIP=10.96.0.10"]


async def test_a_list_whose_token_expires_begins_anew() -> None:
    server = Server(once_services=expired("too old"))
    assert len((await asked(server)).targets) == 2
    assert [plural for plural, _ in server.asked].count("services") == 4


async def test_what_may_not_be_listed_is_a_note_where_there_is_an_answer() -> None:
    no_pods = forbidden("pods", "", "", "no")
    answer = await asked(
        Server(pods=no_pods, servicecidrs=not_found("servicecidrs", "", "")), node="node-a"
    )
    assert len(answer.targets) == 2
    assert answer.notes == (
        "not looked at: pods, the server answers 403",
        "not looked at: servicecidrs, the server answers 404",
    )
    with pytest.raises(Unanswerable, match="say with --node"):
        await asked(Server(pods=no_pods))


@pytest.mark.parametrize("plural", ["services", "nodes", "endpointslices"])
async def test_there_is_no_answer_without_the_rest(plural: str) -> None:
    with pytest.raises((type(expired("")), BaseExceptionGroup)):
        await asked(Server(**{plural: forbidden(plural, "", "", "no")}))


async def test_a_sender_by_its_second_address_is_looked_for_among_all_pods() -> None:
    server = Server()
    server.has["services"] = (service(clusterIPs=["10.96.0.10", "fd96::10"]),)
    server.has["pods"] = (SENDER, pod("second", "node-b", "10.1.0.6", "fd01::6"))
    answer = await asked(server, source="fd01::6", to="[fd96::10]:80")
    assert (answer.source.name, answer.node.name) == ("prod/second", "node-b")
    assert ("pods", "") in server.asked
    server.asked.clear()
    for source in (CLIENT, "192.0.2.1"):
        await asked(server, source=source)
    await asked(server, source="198.51.100.7", node="node-a")
    assert ("pods", "") not in server.asked, "nobody has to be looked for"


async def test_endpoints_are_read_where_slices_are_not() -> None:
    server = Server()
    answer = await asked(server, gates="EndpointSliceProxying=false")
    assert shares(answer) == {"10.1.1.1": "1"}
    assert [each.why for each in answer.others] == ["not ready"]
    assert not any(plural == "endpointslices" for plural, _ in server.asked)
    answer = await asked(server, to="10.96.0.11:80", gates="EndpointSliceProxying=false")
    assert answer.verdict == "reject"


async def from_here(
    server: Any, source: str = "", to: str = "api.prod", node: str = ""
) -> TraceAnswer:
    question = await question_of(server, source, to, protocol=None, node=node, namespace="prod")
    return await trace(server, question, TracedProxy(PODS, Gates.parse("")))


async def test_without_a_sender_it_is_this_machine_if_that_is_a_node_and_else_a_client_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Node-B")
    answer = await from_here(Server())
    assert (answer.source.name, answer.source.address, answer.node.name) == (
        "node-b",
        "192.0.2.2",
        "node-b",
    )
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    answer = await from_here(Server())
    assert (answer.source.kind, answer.source.address, answer.node.name) == (
        "other",
        "203.0.113.1",
        "node-a",
    )
    assert (
        "a client outside may enter at any node; this is the answer for node-a, --node selects another"
        in answer.notes
    )
    assert (await from_here(Server(), "outside", node="node-b")).node.name == "node-b"
    assert (await from_here(Server(), "outside", "192.0.2.2:30080")).node.name == "node-b", (
        "it dials that node"
    )


async def test_a_client_outside_sends_in_the_family_that_the_service_has() -> None:
    server = Server()
    server.has["services"] = (service(clusterIP="fd96::10", clusterIPs=["fd96::10"]),)
    server.has["nodes"] = (NODES[1],)
    answer = await from_here(server, "outside")
    assert (answer.source.address, answer.destination.address) == ("2001:db8::1", "fd96::10")
    assert not any("may come to any node" in note for note in answer.notes), "there is one"


async def test_where_no_node_is_nothing_leads_a_packet() -> None:
    server = Server()
    server.has["nodes"] = ()
    with pytest.raises(
        Unanswerable,
        match="there is no Node, so no node proxy leads packets: sliceplane up --proxy",
    ):
        await from_here(server, "outside")


async def by_xds(server: Any, who: str, to: str = "api") -> dict[str, str]:
    question = await xds_question_of(server, who, to, namespace="prod", domain="cluster.local")
    return {row.address: row.share for row in (await trace_xds(server, question)).targets}


async def test_of_xds_one_service_is_read_and_a_client_is_a_node_a_pod_or_a_zone() -> None:
    server = Server()
    for who in ("node-a", "node/node-a", "pod/client", "zone/zone-a", ""):
        assert await by_xds(server, who) == {"10.1.1.1": "1/2", "10.1.2.1": "1/2"}
    assert {selectors for plural, selectors in server.asked if plural == "endpointslices"} == {
        "prod kubernetes.io/service-name=api"
    }
    assert await by_xds(Server(nodes=forbidden("nodes", "", "", "no")), "node-a") == await by_xds(
        server, "node-a"
    )
    for who, to, sentence in (
        ("rack/1", "api", "--client 'rack/1' is neither"),
        ("pod/none", "api", "--client: there is no Pod prod/none"),
        ("node-a", "appi", "there is no Service prod/appi; is prod/api"),
    ):
        with pytest.raises(Unanswerable, match=sentence):
            await by_xds(server, who, to)
