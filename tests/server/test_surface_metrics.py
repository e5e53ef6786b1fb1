"""What operators read: metrics under upstream's names, and log lines that an audit id finds."""

from __future__ import annotations

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.server.serving import Server, complaints, run_plane, watching
from tests.server.surface import CONFIG_MAPS, LEASES, MERGE_PATCH, SLICES, config_map, make
from tests.waiting import until

from sliceplane.kit.io import log
from sliceplane.server.io.plane import PlaneConfig

LABELS = {"component": "apiserver", "dry_run": "", "group": "", "version": "v1", "subresource": ""}
MAPS = {**LABELS, "resource": "configmaps"}


def samples(server: Server, name: str) -> list[tuple[dict[str, str], float]]:
    text = server.get("/metrics").body.decode()
    return [
        (sample.labels, sample.value)
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == name
    ]


def counted(server: Server, **labels: str) -> float:
    """Of ``apiserver_request_total``, once it is there: a request is counted after its answer is
    out.
    """
    series = until(
        lambda: samples(server, "apiserver_request_total"),
        lambda series: labels in [found for found, _ in series],
    )
    return next(value for found, value in series if found == labels)


def test_labels_of_requests_are_upstreams(server: Server) -> None:
    make(server, "measured")
    server.get(f"{CONFIG_MAPS}/measured")
    server.get(CONFIG_MAPS)
    server.get("/api/v1/configmaps")
    server.request("PATCH", f"{CONFIG_MAPS}/measured", {}, Content_Type=MERGE_PATCH)
    server.request("PUT", f"{CONFIG_MAPS}/measured?dryRun=All", config_map("measured"))
    server.get(f"{CONFIG_MAPS}?fieldSelector=metadata.name%3Dmeasured")
    server.get("/api/v1/nodes/x/status")
    server.get("/readyz")
    server.request("GET", SLICES, certificate=False, Authorization="Bearer nonsense")
    for verb, scope, code, more in [
        ("POST", "resource", "201", {}),
        ("GET", "resource", "200", {}),
        ("LIST", "namespace", "200", {}),
        ("LIST", "cluster", "200", {}),
        ("PATCH", "resource", "200", {}),
        ("PUT", "resource", "200", {"dry_run": "All"}),
        ("LIST", "resource", "200", {}),
        ("GET", "resource", "404", {"resource": "nodes", "subresource": "status"}),
        ("GET", "", "200", {"resource": "", "version": "", "subresource": "/readyz"}),
        ("LIST", "namespace", "401", {"resource": "endpointslices", "group": "discovery.k8s.io"}),
    ]:
        assert counted(server, **{**MAPS, "verb": verb, "scope": scope, "code": code, **more}) >= 1


def test_nobody_makes_series_by_inventing_names(server: Server) -> None:
    server.get("/api/v1/nodes")
    for number in range(20):
        server.get(f"/api/v1/invented-{number}")
        server.get(f"/invented-{number}")
        server.request(f"INVENTED{number}", "/api/v1/nodes")
        server.request("GET", f"/apis/invented-{number}/v1/things", certificate=False)
    shown = {tuple(labels.items()) for labels, _ in samples(server, "apiserver_request_total")}
    assert not [labels for labels in shown if "nvented" in str(labels).lower()]
    assert len(shown) < 40


def test_durations_have_upstreams_buckets(server: Server) -> None:
    server.get("/api/v1/nodes")
    bounds = [
        labels["le"]
        for labels, _ in samples(server, "apiserver_request_duration_seconds_bucket")
        if (labels["resource"], labels["verb"]) == ("nodes", "LIST")
    ]
    whole = "1.0 1.25 1.5 2.0 3.0 4.0 5.0 6.0 8.0 10.0 15.0 20.0 30.0 45.0 60.0 +Inf"
    assert " ".join(bounds) == f"0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 {whole}"


def test_watches(server: Server) -> None:
    with watching(server, f"{LEASES}?watch=1") as stream:
        server.request("POST", LEASES, {"metadata": {"name": "seen"}, "spec": {}})
        assert stream.next()["type"] == "ADDED"
        running = samples(server, "apiserver_longrunning_requests")
        identity = {"group": "coordination.k8s.io", "version": "v1", "resource": "leases"}
        labels = {
            "verb": "WATCH",
            "scope": "namespace",
            "component": "apiserver",
            "subresource": "",
            **identity,
        }
        assert (labels, 1.0) in running
        assert (identity, 1.0) in samples(server, "apiserver_watch_events_total")
        assert dict_of(samples(server, "sliceplane_watch_sent_bytes_total"), identity) > 100


def dict_of(found: list[tuple[dict[str, str], float]], labels: dict[str, str]) -> float:
    return next(value for shown, value in found if shown == labels)


def test_storage_and_process(server: Server) -> None:
    before = dict_of(samples(server, "sliceplane_storage_commit_duration_seconds_count"), {})
    make(server, "stored")
    assert (
        dict_of(samples(server, "sliceplane_storage_commit_duration_seconds_count"), {})
        == before + 1
    )
    objects = samples(server, "apiserver_resource_objects")
    assert ({"group": "", "resource": "namespaces"}, 4.0) in objects
    assert ({"resource": "namespaces"}, 4.0) in samples(server, "apiserver_storage_objects")
    assert {
        tuple(labels.values())
        for labels, _ in samples(server, "apiserver_current_inflight_requests")
    } == {
        ("mutating",),
        ("readOnly",),
    }
    assert samples(server, "process_resident_memory_bytes")[0][1] > 1e6
    assert ({"name": "etcd", "type": "livez"}, 1.0) in samples(server, "kubernetes_healthcheck")
    assert ({"name": "TopologyAwareHints", "stage": ""}, 1.0) in samples(
        server, "kubernetes_feature_enabled"
    )
    (build, one), *_ = samples(server, "kubernetes_build_info")
    assert (build["git_version"], one) == (server.get("/version").json["gitVersion"], 1.0)


def test_a_database_has_a_size(kept: PlaneConfig) -> None:
    plane, end = run_plane(kept)
    try:
        (labels, size), *_ = samples(Server(plane), "apiserver_storage_size_bytes")
        assert list(labels) == ["storage_cluster_id"]
        assert size > 4096
    finally:
        end()


def test_text_and_openmetrics(server: Server) -> None:
    plain = server.get("/metrics", Accept="text/html")
    assert plain.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    wanted = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5"
    reply = server.get("/metrics", Accept=wanted)
    assert reply.headers["Content-Type"].startswith(
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert reply.body.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(reply.body.decode())}
    assert {"apiserver_request", "apiserver_watch_events", "process_cpu_seconds"} <= names


def test_a_log_line_is_found_by_its_audit_id(
    server: Server, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.get("/api/v1/nodes")
    assert "nodes" not in "".join(complaints(capfd.readouterr().err))
    monkeypatch.setattr(log, "_level", log.LEVELS["debug"])
    audit_id = server.get("/api/v1/nodes?limit=5", User_Agent="probe/1").headers["Audit-Id"]
    said: list[str] = []

    def text_so_far() -> str:
        said.append(capfd.readouterr().err)
        return "".join(said)

    text = until(text_so_far, lambda text: audit_id in text)
    line = next(line for line in text.splitlines() if f"audit_id={audit_id}" in line)
    for part in ("level=debug", "verb=LIST", "code=200", "agent=probe/1", "source=127.0.0.1"):
        assert part in line
    assert re.search(r'uri="?/api/v1/nodes\?limit=5', line)
