"""The reverse mirror: Endpoints for old readers, and nothing of anybody else's touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.effort import effort

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Nodes, Pods, Services
from sliceplane.controllers.endpointslice import EndpointSliceController
from sliceplane.controllers.reverse_mirroring import ReverseMirrorController
from sliceplane.lab.sim.cluster import Cluster

OURS = "reverse-mirror.sliceplane.dev"
MANAGED_BY = "endpoints.kubernetes.io/managed-by"
SKIP = "endpointslice.kubernetes.io/skip-mirror"
MIRRORING = "endpointslicemirroring-controller.k8s.io"
Document = dict[str, Any]


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(EndpointSliceController(), ReverseMirrorController())
    made.create(Nodes, {"metadata": {"name": "n1"}})
    return made


#: what a Service is patched with so that it is a name elsewhere
ELSEWHERE: Document = {
    "type": "ExternalName",
    "externalName": "x.example.com",
    **dict.fromkeys(("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")),
}


def service(cluster: Cluster, name: str = "web", **spec: Any) -> Document:
    body = {
        "metadata": {"name": name, "labels": {"team": "shop"}},
        "spec": {"ports": [{"port": 80}], **spec},
    }
    return cluster.create(Services, body)


def pod(cluster: Cluster, name: str, ip: str, ready: bool = True, app: str = "web") -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "x"}]}
    cluster.create(Pods, {"metadata": {"name": name, "labels": {"app": app}}, "spec": spec})
    set_ready(cluster, name, ready, ip)


def set_ready(cluster: Cluster, name: str, ready: bool, ip: str) -> None:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [condition]}
    cluster.patch(Pods, name, {"status": status}, subresource="status")


def make_slice(
    cluster: Cluster, name: str, ips: list[str], of: str = "web", **members: Any
) -> Document:
    labels = {"kubernetes.io/service-name": of, **members.pop("labels", {})}
    body = {
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv6" if ips and ":" in ips[0] else "IPv4",
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in ips],
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
    }
    return cluster.create(EndpointSlices, body | members)


def endpoints(cluster: Cluster, name: str = "web") -> Document | None:
    return next(
        (each for each in cluster.list(EndpointsObjects) if each["metadata"]["name"] == name), None
    )


def ips(cluster: Cluster, name: str = "web", member: str = "addresses") -> list[str]:
    found = endpoints(cluster, name)
    assert found is not None
    return [
        address["ip"] for subset in found.get("subsets", ()) for address in subset.get(member, ())
    ]


def writes(cluster: Cluster) -> int:
    return sum(write.resource is EndpointsObjects for _, write in cluster.writes)


def test_endpoints_as_an_old_reader_knows_them(cluster: Cluster) -> None:
    service(cluster, selector={"app": "web"})
    pod(cluster, "a", "10.0.0.1")
    pod(cluster, "b", "10.0.0.2", ready=False)
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert found["metadata"]["labels"] == {"team": "shop", MANAGED_BY: OURS, SKIP: "true"}
    (subset,) = found["subsets"]
    assert subset["ports"] == [{"port": 80, "protocol": "TCP"}]
    (ready,), (waiting,) = subset["addresses"], subset["notReadyAddresses"]
    uid = cluster.get(Pods, "a")["metadata"]["uid"]
    target = {"kind": "Pod", "namespace": "default", "name": "a", "uid": uid}
    assert ready == {"ip": "10.0.0.1", "nodeName": "n1", "targetRef": target}
    assert waiting["ip"] == "10.0.0.2"
    before = writes(cluster)
    set_ready(cluster, "b", True, "10.0.0.2")
    cluster.converge()
    assert ips(cluster) == ["10.0.0.1", "10.0.0.2"]
    assert writes(cluster) == before + 1
    cluster.check()


def test_a_terminating_pod_is_left_out_unless_it_is_to_be_published(cluster: Cluster) -> None:
    service(cluster, selector={"app": "web"})
    service(cluster, "all", selector={"app": "web"}, publishNotReadyAddresses=True)
    pod(cluster, "a", "10.0.0.1")
    cluster.converge()
    cluster.delete(Pods, "a", gracePeriodSeconds=30)
    cluster.converge(limit_s=10)
    (found,) = [
        each for each in cluster.list(EndpointSlices) if each["metadata"]["name"].startswith("web-")
    ]
    assert found["endpoints"][0]["conditions"] == {
        "ready": False,
        "serving": True,
        "terminating": True,
    }
    assert ips(cluster) == []
    assert ips(cluster, member="notReadyAddresses") == []
    assert ips(cluster, "all") == ["10.0.0.1"]


def test_one_family_the_primary_one() -> None:
    cluster = Cluster(ReverseMirrorController())
    for name, families in (("four", ["IPv4", "IPv6"]), ("six", ["IPv6", "IPv4"])):
        service(cluster, name, ipFamilies=families, ipFamilyPolicy="RequireDualStack")
        make_slice(cluster, f"{name}-a", ["10.0.0.1"], of=name)
        make_slice(cluster, f"{name}-b", ["fd00::1"], of=name)
    cluster.converge()
    assert ips(cluster, "four") == ["10.0.0.1"]
    assert ips(cluster, "six") == ["fd00::1"]


def test_truncated_on_the_way_up_and_whole_on_the_way_down() -> None:
    cluster = Cluster(ReverseMirrorController())
    service(cluster)
    everything = [f"10.1.{n // 200}.{n % 200 + 1}" for n in range(1001)]
    for start in range(0, 1000, 100):
        make_slice(cluster, f"web-{start}", everything[start : start + 100])
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert "annotations" not in found["metadata"]
    make_slice(cluster, "web-1000", everything[1000:])
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert found["metadata"]["annotations"] == {
        "endpoints.kubernetes.io/over-capacity": "truncated"
    }
    assert ips(cluster) == sorted(everything)[:1000]
    quiet = writes(cluster)
    cluster.patch(EndpointSlices, "web-1000", {"metadata": {"labels": {"x": "y"}}})
    cluster.converge()
    assert writes(cluster) == quiet, "a truncated object is not written again for nothing"
    cluster.delete(EndpointSlices, "web-1000")
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert "annotations" not in found["metadata"]
    assert len(ips(cluster)) == 1000


class TestWhatIsNotOurs:
    def test_others_objects_are_left_alone(self, cluster: Cluster) -> None:
        theirs = cluster.create(
            EndpointsObjects,
            {
                "metadata": {"name": "web", "labels": {MANAGED_BY: "endpoint-controller"}},
                "subsets": [],
            },
        )
        service(cluster, selector={"app": "web"})
        pod(cluster, "a", "10.0.0.1")
        cluster.converge()
        assert endpoints(cluster) == theirs
        cluster.delete(Services, "web")
        cluster.converge()
        assert endpoints(cluster) == theirs

    def test_deleted_or_handed_over_they_are_ours(self, cluster: Cluster) -> None:
        for name in ("web", "api"):
            cluster.create(
                EndpointsObjects, {"metadata": {"name": name, "annotations": {"note": "x"}}}
            )
            service(cluster, name, selector={"app": "web"})
        pod(cluster, "a", "10.0.0.1")
        cluster.converge()
        assert writes(cluster) == 0
        cluster.delete(EndpointsObjects, "web")
        cluster.patch(EndpointsObjects, "api", {"metadata": {"labels": {MANAGED_BY: OURS}}})
        cluster.converge()
        assert ips(cluster) == ips(cluster, "api") == ["10.0.0.1"]
        handed = endpoints(cluster, "api")
        assert handed is not None
        assert handed["metadata"]["annotations"]["note"] == "x"

    def test_who_takes_the_label_away_has_it_back(self, cluster: Cluster) -> None:
        service(cluster, selector={"app": "web"})
        cluster.converge()
        cluster.patch(EndpointsObjects, "web", {"metadata": {"labels": {MANAGED_BY: None}}})
        pod(cluster, "a", "10.0.0.1")
        cluster.converge()
        assert ips(cluster) == []
        cluster.delete(Services, "web")
        cluster.converge()
        assert endpoints(cluster) is not None

    def test_one_that_changes_hands_while_we_write(self) -> None:
        """The plan was made; before it is performed the label goes.  Neither an update nor a delete
        gets through.
        """
        for spec in (ELSEWHERE, {"publishNotReadyAddresses": True}):
            cluster = Cluster(EndpointSliceController(), ReverseMirrorController())
            service(cluster, selector={"app": "web"})
            cluster.converge()
            _, controller = cluster.controllers
            cluster.patch(Services, "web", {"metadata": {"labels": {"new": "label"}}, "spec": spec})
            (job,) = controller.take_work(cluster.now, 5).jobs
            cluster.patch(EndpointsObjects, "web", {"metadata": {"labels": {MANAGED_BY: "me"}}})
            taken = endpoints(cluster)
            cluster._run(controller, job)
            assert cluster.writes[-1][0] == "Conflict"
            cluster.converge()
            assert endpoints(cluster) == taken

    def test_nothing_is_mirrored_there_and_back(self, cluster: Cluster) -> None:
        """Mirrored slices come from Endpoints: they are no source, also when those are gone."""
        service(cluster)
        make_slice(
            cluster,
            "web-m",
            ["10.0.0.1"],
            labels={"endpointslice.kubernetes.io/managed-by": MIRRORING},
        )
        cluster.converge()
        assert endpoints(cluster) is None
        make_slice(cluster, "web-own", ["10.0.0.2"])
        cluster.converge()
        assert ips(cluster) == ["10.0.0.2"]


class TestTheEnd:
    def test_with_its_service(self, cluster: Cluster) -> None:
        service(cluster, selector={"app": "web"})
        cluster.converge()
        assert endpoints(cluster) is not None
        cluster.delete(Services, "web")
        cluster.converge()
        assert endpoints(cluster) is None

    def test_when_the_service_is_a_name_elsewhere(self, cluster: Cluster) -> None:
        service(cluster, selector={"app": "web"})
        cluster.converge()
        cluster.patch(Services, "web", {"spec": ELSEWHERE})
        cluster.converge()
        assert endpoints(cluster) is None
        cluster.patch(Services, "web", {"spec": {"type": "ClusterIP", "externalName": None}})
        cluster.converge()
        assert endpoints(cluster) is not None

    def test_with_the_last_slice_where_there_is_no_selector(self, cluster: Cluster) -> None:
        service(cluster)
        cluster.converge()
        assert endpoints(cluster) is None, "nobody says anything of it"
        make_slice(cluster, "web-a", ["10.0.0.1"])
        make_slice(cluster, "web-b", [])
        cluster.converge()
        cluster.delete(EndpointSlices, "web-a")
        cluster.converge()
        assert ips(cluster) == [], "a slice without endpoints says that there are none"
        cluster.delete(EndpointSlices, "web-b")
        cluster.converge()
        assert endpoints(cluster) is None

    def test_of_a_service_that_went_while_nobody_looked(self, cluster: Cluster) -> None:
        service(cluster, selector={"app": "web"})
        cluster.converge()
        cluster.replace()
        cluster.delete(Services, "web")
        cluster.replace(ReverseMirrorController())
        cluster.converge()
        assert endpoints(cluster) is None

    def test_clean_up(self, cluster: Cluster) -> None:
        for name in ("web", "api", "theirs"):
            service(cluster, name, selector={"app": "web"})
        theirs = cluster.create(EndpointsObjects, {"metadata": {"name": "theirs"}})
        cluster.converge()
        cluster.replace(ReverseMirrorController(cleanup=True))
        cluster.converge()
        assert [each["metadata"]["name"] for each in cluster.list(EndpointsObjects)] == ["theirs"]
        assert endpoints(cluster, "theirs") == theirs


def test_a_restart_writes_nothing(cluster: Cluster) -> None:
    service(cluster, selector={"app": "web"})
    pod(cluster, "a", "10.0.0.1")
    service(cluster, "db", clusterIP="None")
    make_slice(cluster, "db-a", ["10.0.0.9"], of="db", ports=[])
    cluster.converge()
    before = writes(cluster)
    cluster.replace(EndpointSliceController(), ReverseMirrorController())
    cluster.converge()
    assert writes(cluster) == before
    headless = endpoints(cluster, "db")
    assert headless is not None
    assert headless["metadata"]["labels"]["service.kubernetes.io/headless"] == ""
    assert headless["subsets"] == [{"addresses": [{"ip": "10.0.0.9"}]}]


def test_the_trigger_time_is_handed_on(cluster: Cluster) -> None:
    service(cluster)
    trigger = "endpoints.kubernetes.io/last-change-trigger-time"
    first = make_slice(cluster, "web-a", ["10.0.0.1"])
    cluster.converge()
    listed = [*first["endpoints"], {"addresses": ["10.0.0.2"]}]
    for second in ("05", "03"):
        change: Document = {
            "metadata": {"annotations": {trigger: f"2027-01-15T08:00:{second}Z"}},
            "endpoints": listed,
        }
        cluster.patch(EndpointSlices, "web-a", change)
        listed = [*listed, {"addresses": ["10.0.0.3"]}]
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert found["metadata"]["annotations"] == {trigger: "2027-01-15T08:00:03Z"}
    make_slice(cluster, "web-b", ["10.0.0.4"])
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    assert "annotations" not in found["metadata"]


def test_a_foreign_edit_is_put_right(cluster: Cluster) -> None:
    service(cluster, selector={"app": "web"})
    pod(cluster, "a", "10.0.0.1")
    cluster.converge()
    cluster.patch(EndpointsObjects, "web", {"subsets": None})
    cluster.patch(EndpointsObjects, "web", {"metadata": {"labels": {"team": None, "x": "y"}}})
    cluster.converge()
    assert ips(cluster) == ["10.0.0.1"]
    found = endpoints(cluster)
    assert found is not None
    assert found["metadata"]["labels"] == {"team": "shop", MANAGED_BY: OURS, SKIP: "true"}


def test_ports_of_which_some_have_no_name_or_number(cluster: Cluster) -> None:
    """Accepted by the server: each subset of several ports has names."""
    service(cluster)
    make_slice(
        cluster,
        "web-a",
        ["10.0.0.1"],
        ports=[{"name": "", "port": 80}, {"name": "b", "port": 81}, {"name": "c"}],
    )
    make_slice(cluster, "web-b", ["10.0.0.2"], ports=[{"name": "b", "port": 81}])
    cluster.converge()
    found = endpoints(cluster)
    assert found is not None
    ports = {
        json.dumps(subset["ports"]): [each["ip"] for each in subset["addresses"]]
        for subset in found["subsets"]
    }
    assert ports == {
        '[{"port": 80, "protocol": "TCP"}]': ["10.0.0.1"],
        '[{"name": "b", "port": 81, "protocol": "TCP"}]': ["10.0.0.1", "10.0.0.2"],
    }


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "service",
                "headless",
                "external",
                "no service",
                "slice",
                "no slice",
                "mirrored",
                "edit",
                "take",
                "delete",
                "restart",
                "rest",
            ]
        ),
        st.sampled_from(["a", "b"]),
        st.integers(1, 9),
    ),
    max_size=25,
)


@effort(60)
@given(STEPS)
def test_after_any_history_readers_see_what_slices_say(steps: list[tuple[str, str, int]]) -> None:
    cluster = Cluster(ReverseMirrorController())
    taken: dict[str, Document] = {}
    for what, name, number in steps:
        try:
            step(cluster, what, name, number, taken)
        except StatusError as error:
            if error.reason not in ("NotFound", "AlreadyExists", "Invalid"):
                raise
        cluster.check()
    cluster.converge()
    cluster.check()
    for name in ("a", "b"):
        found = endpoints(cluster, name)
        if name in taken:
            assert found == taken[name], "not ours, not touched"
            continue
        services = {each["metadata"]["name"]: each for each in cluster.list(Services)}
        sources = [
            each
            for each in cluster.list(EndpointSlices)
            if each["metadata"]["labels"]["kubernetes.io/service-name"] == name
            and each["metadata"]["labels"].get("endpointslice.kubernetes.io/managed-by")
            != MIRRORING
        ]
        wanted = name in services and services[name]["spec"].get("type") != "ExternalName"
        wanted = wanted and ("selector" in services[name]["spec"] or bool(sources))
        assert (found is not None) is wanted
        if wanted:
            told = sorted(
                {ip for each in sources for one in each["endpoints"] for ip in one["addresses"]}
            )
            assert ips(cluster, name) == told
    last = len(cluster.writes)
    cluster.converge()
    assert len(cluster.writes) == last, "at rest"


def step(cluster: Cluster, what: str, name: str, number: int, taken: dict[str, Document]) -> None:
    match what:
        case "service":
            service(cluster, name, selector={"app": name})
        case "headless":
            service(cluster, name, clusterIP="None")
        case "external":
            cluster.patch(Services, name, {"spec": ELSEWHERE})
        case "no service":
            cluster.delete(Services, name)
        case "slice":
            make_slice(
                cluster, f"{name}-{number}", [f"10.0.0.{number}", f"10.0.1.{number}"], of=name
            )
        case "no slice":
            cluster.delete(EndpointSlices, f"{name}-{number}")
        case "mirrored":
            labels = {"endpointslice.kubernetes.io/managed-by": MIRRORING}
            make_slice(cluster, f"{name}-{number}", [f"10.0.2.{number}"], of=name, labels=labels)
        case "edit":
            cluster.patch(
                EndpointsObjects, name, {"subsets": [{"addresses": [{"ip": f"10.0.3.{number}"}]}]}
            )
            if name in taken:
                taken[name] = cluster.get(EndpointsObjects, name)
        case "take":
            taken[name] = cluster.patch(
                EndpointsObjects, name, {"metadata": {"labels": {MANAGED_BY: f"me-{number}"}}}
            )
        case "delete":
            cluster.delete(EndpointsObjects, name)
            taken.pop(name, None)
        case "restart":
            cluster.replace(ReverseMirrorController())
        case _:
            cluster.converge()
