"""FlowSchemas and PriorityLevelConfigurations: what the server goes by, read-only."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.server.serving import Server, run_plane
from tests.server.test_kubectl_smoke import kubectl

from sliceplane.api.scheme import FlowSchemas, PriorityLevelConfigurations
from sliceplane.server.documents.protobuf import decode
from sliceplane.server.documents.schema import unknown_fields
from sliceplane.server.io.plane import PlaneConfig

GROUP = "/apis/flowcontrol.apiserver.k8s.io/v1"
PROTOBUF = "application/vnd.kubernetes.protobuf"


def test_every_schema_and_level_of_upstream_is_there(server: Server) -> None:
    levels = {
        each["metadata"]["name"]: each
        for each in server.get(f"{GROUP}/prioritylevelconfigurations").json["items"]
    }
    assert sorted(levels) == [
        "catch-all",
        "exempt",
        "global-default",
        "leader-election",
        "node-high",
        "system",
        "workload-high",
        "workload-low",
    ]
    assert levels["catch-all"]["spec"] == {
        "type": "Limited",
        "limited": {
            "nominalConcurrencyShares": 5,
            "limitResponse": {"type": "Reject"},
            "lendablePercent": 0,
        },
    }
    schemas = {
        each["metadata"]["name"]: each for each in server.get(f"{GROUP}/flowschemas").json["items"]
    }
    assert len(schemas) == 12
    for schema in schemas.values():
        assert schema["spec"]["priorityLevelConfiguration"]["name"] in levels
        assert unknown_fields(FlowSchemas.key, schema) == ()
    for level in levels.values():
        assert unknown_fields(PriorityLevelConfigurations.key, level) == ()
    leaders = schemas["system-leader-election"]["spec"]["rules"][0]
    assert {
        "kind": "ServiceAccount",
        "serviceAccount": {"namespace": "kube-system", "name": "*"},
    } in leaders["subjects"]
    assert leaders["resourceRules"] == [
        {
            "verbs": ["get", "create", "update"],
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "namespaces": ["*"],
        }
    ]


def test_headers_name_objects_that_are_there(server: Server) -> None:
    headers = server.get("/version").headers
    schema = server.get(f"{GROUP}/flowschemas/exempt").json
    level = server.get(f"{GROUP}/prioritylevelconfigurations/exempt").json
    assert headers["X-Kubernetes-Pf-Flowschema-Uid"] == schema["metadata"]["uid"]
    assert headers["X-Kubernetes-Pf-Prioritylevel-Uid"] == level["metadata"]["uid"]


@pytest.mark.parametrize("plural", ["flowschemas", "prioritylevelconfigurations"])
def test_nobody_writes_them(server: Server, plural: str) -> None:
    document = server.get(f"{GROUP}/{plural}/catch-all").json
    for method, path in (
        ("POST", f"{GROUP}/{plural}"),
        ("PUT", f"{GROUP}/{plural}/catch-all"),
        ("DELETE", f"{GROUP}/{plural}/catch-all"),
        ("DELETE", f"{GROUP}/{plural}"),
    ):
        assert (
            server.request(method, path, document, Content_Type="application/json").code == 405
        ), (method, path)
    assert server.get(f"{GROUP}/{plural}/catch-all").json == document


def test_they_say_the_same_in_protobuf(server: Server) -> None:
    for path in (f"{GROUP}/flowschemas/probes", f"{GROUP}/prioritylevelconfigurations/system"):
        assert decode(server.get(path, Accept=PROTOBUF).body) == server.get(path).json


def test_a_start_brings_them_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec.structs import replace

    from sliceplane.server.fairness.defaults import LEVELS
    from sliceplane.server.registry import bootstrap

    config = PlaneConfig(data_dir=str(tmp_path / "data"), secure_port=0)
    others = (
        *(replace(each, shares=each.shares + 1) for each in LEVELS),
        replace(LEVELS[0], name="of-old"),
    )
    monkeypatch.setattr(bootstrap, "LEVELS", others)
    plane, end = run_plane(config)
    assert Server(plane).get(f"{GROUP}/prioritylevelconfigurations/of-old").code == 200
    end()
    monkeypatch.undo()
    plane, end = run_plane(config)
    try:
        server = Server(plane)
        assert server.get(f"{GROUP}/prioritylevelconfigurations/of-old").code == 404
        system = server.get(f"{GROUP}/prioritylevelconfigurations/system").json
        assert system["spec"]["limited"]["nominalConcurrencyShares"] == 30
        assert system["metadata"]["generation"] == 2
        revision = server.get(f"{GROUP}/flowschemas").json["metadata"]["resourceVersion"]
    finally:
        end()
    plane, end = run_plane(config)
    try:
        schemas = Server(plane).get(f"{GROUP}/flowschemas").json
        assert max(int(each["metadata"]["resourceVersion"]) for each in schemas["items"]) <= int(
            revision
        )
    finally:
        end()


@pytest.mark.kubectl
def test_kubectl_prints_what_upstream_prints(server: Server, tmp_path: Path) -> None:
    lines = kubectl(server, tmp_path, "get", "flowschemas").splitlines()
    assert lines[0].split() == [
        "NAME",
        "PRIORITYLEVEL",
        "MATCHINGPRECEDENCE",
        "DISTINGUISHERMETHOD",
        "AGE",
        "MISSINGPL",
    ]
    assert [line.split()[0] for line in lines[1:]] == [
        "exempt",
        "probes",
        "system-leader-election",
        "system-node-high",
        "sliceplane-node-proxies",
        "system-nodes",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-system-service-accounts",
        "service-accounts",
        "global-default",
        "catch-all",
    ]
    assert lines[3].split()[1:4] == ["leader-election", "100", "ByUser"]
    assert lines[3].split()[5] == "False"
    lines = kubectl(server, tmp_path, "get", "prioritylevelconfigurations").splitlines()
    assert lines[0].split()[1:6] == [
        "TYPE",
        "NOMINALCONCURRENCYSHARES",
        "QUEUES",
        "HANDSIZE",
        "QUEUELENGTHLIMIT",
    ]
    rows = {line.split()[0]: line.split()[1:6] for line in lines[1:]}
    assert rows["exempt"] == ["Exempt", "<none>", "<none>", "<none>", "<none>"]
    assert rows["workload-low"] == ["Limited", "100", "128", "6", "50"]
    described = kubectl(server, tmp_path, "describe", "flowschema", "service-accounts")
    assert "Matching Precedence:" in described
    assert "system:serviceaccounts" in described
    assert "Nominal Concurrency Shares:" in kubectl(
        server, tmp_path, "describe", "prioritylevelconfiguration", "system"
    )
