"""What the audit says: managers, clients, locks, limits of what is shown, and the verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sliceplane.api.findings.text import ALIKE_MAX
from sliceplane.diagnose.audit.addresses import READY, WAITING, pack, packed, spelled, unpack
from sliceplane.diagnose.audit.audit import Auditor
from sliceplane.diagnose.audit.judge import key_of
from sliceplane.diagnose.audit.text import as_text
from sliceplane.diagnose.audit.usage import CLIENTS_MAX, OBJECTS_MAX, AuditLogUsage
from sliceplane.diagnose.audit.verdict import Report, report

Document = dict[str, Any]


def body(name: str, namespace: str = "shop", **members: Any) -> Document:
    metadata = {"name": name, "namespace": namespace, **members.pop("metadata", {})}
    return {"metadata": metadata, **members}


def by(
    manager: str, time: str = "2026-01-01T00:00:00Z", fields: Document | None = None
) -> Document:
    return {
        "manager": manager,
        "operation": "Update",
        "time": time,
        "fieldsV1": fields or {"f:subsets": {}},
    }


def subsets(*ips: str) -> list[Document]:
    return [{"addresses": [{"ip": ip} for ip in ips]}]


def audited(*, services: Any = (), endpoints: Any = (), slices: Any = ()) -> Auditor:
    auditor = Auditor()
    listed = {"services": services, "endpoints": endpoints, "endpointslices": slices}
    for plural, documents in listed.items():
        for each in documents:
            auditor.on_object(plural, json.dumps(each).encode())
    return auditor


def slice_of(service: str, *ips: str, manager: str = "endpointslice-controller.k8s.io") -> Document:
    labels = {
        "kubernetes.io/service-name": service,
        "endpointslice.kubernetes.io/managed-by": manager,
    }
    return body(
        f"{service}-x",
        metadata={"labels": labels},
        addressType="IPv4",
        endpoints=[{"addresses": [ip]} for ip in ips],
    )


def event(**members: Any) -> bytes:
    """A line of an audit log."""
    answer = {
        "kind": "Event",
        "stage": "ResponseComplete",
        "verb": "list",
        "user": {"username": "router"},
        "userAgent": "router/1.0 (linux/amd64)",
        "objectRef": {"resource": "endpoints", "apiVersion": "v1"},
        "responseStatus": {"code": 200},
        "stageTimestamp": "2026-01-01T10:00:00.000000Z",
    }
    return json.dumps(answer | members).encode() + b"\n"


def log_of(*lines: bytes) -> AuditLogUsage:
    log = AuditLogUsage()
    for line in lines:
        log.on_line(line)
    return log


def reported(auditor: Auditor, log: AuditLogUsage | None = None) -> Report:
    return report(auditor, auditor.findings(), log)


SELECTING = body("web", spec={"selector": {"a": "b"}, "ipFamilies": ["IPv4"]})
SOUND = audited(
    services=[SELECTING],
    endpoints=[body("web", subsets=subsets("10.0.0.1"))],
    slices=[slice_of("web", "10.0.0.1")],
)


class TestWriters:
    def test_who_wrote_what_and_when(self) -> None:
        fields = [
            by("kube-controller-manager"),
            by("kube-controller-manager", "2026-02-01T00:00:00Z"),
            by("kubectl", fields={"f:metadata": {}}),
        ]
        auditor = audited(
            services=[SELECTING, body("db", spec={})],
            endpoints=[
                body("web", metadata={"managedFields": fields}, subsets=subsets("10.0.0.1")),
                body(
                    "db", metadata={"managedFields": [by("operator")]}, subsets=subsets("10.0.0.2")
                ),
                body(
                    "lock",
                    metadata={
                        "managedFields": [by("old", fields={"f:subsets": {}})],
                        "annotations": {"control-plane.alpha.kubernetes.io/leader": "{}"},
                    },
                ),
            ],
            slices=[
                slice_of("web", "10.0.0.1")
                | {
                    "metadata": slice_of("web")["metadata"]
                    | {"managedFields": [by("kube-controller-manager", fields={"f:endpoints": {}})]}
                }
            ],
        )
        rows = {
            row.manager: (row.selecting, row.others, row.locks, row.slices, row.last[:7])
            for row in auditor.writers()
        }
        assert rows == {
            "kube-controller-manager": (1, 0, 0, 1, "2026-02"),
            "old": (0, 0, 1, 0, "2026-01"),
            "operator": (0, 1, 0, 0, "2026-01"),
        }

    @pytest.mark.parametrize(
        ("manager", "kinds"),
        [("kube-controller-manager", set()), ("k3s", set()), ("helm", {"L4"})],
    )
    def test_a_second_writer_beside_the_controller(self, manager: str, kinds: set[str]) -> None:
        auditor = audited(
            services=[SELECTING],
            endpoints=[
                body("web", metadata={"managedFields": [by(manager)]}, subsets=subsets("10.0.0.1"))
            ],
            slices=[slice_of("web", "10.0.0.1")],
        )
        assert {each.code for each in auditor.findings()} == kinds

    def test_objects_without_managed_fields(self) -> None:
        assert SOUND.writers() == ()
        assert SOUND.findings() == ()


class TestLLMKube895:
    """A forgotten Endpoints object without Service went on feeding a dead mirrored slice for a
    week.
    """

    def test_both_are_reported(self) -> None:
        mirrored = slice_of("model", "10.0.0.9", manager="endpointslicemirroring-controller.k8s.io")
        auditor = audited(endpoints=[body("model", subsets=subsets("10.0.0.9"))], slices=[mirrored])
        assert [(each.code, key_of(each)) for each in auditor.findings()] == [
            ("E15", "shop/model"),
            ("L3", "shop/model"),
        ]
        assert reported(auditor).verdict == (
            "safe to switch the Endpoints controller off: no, because 2 findings are against it "
            "(E15, L3)"
        )


@pytest.mark.parametrize("story", ["103804", "105987", "118376", "111929"])
def test_mirrored_slices_that_a_selector_left_behind(story: str) -> None:
    """kubernetes#103804 and its like: a Service got a selector, its mirrored slice stayed beside
    the new ones.
    """
    slices = [
        slice_of("web", "10.0.0.1", manager="endpointslicemirroring-controller.k8s.io"),
        slice_of("web", "10.0.0.1", "10.0.0.2")
        | {"metadata": slice_of("web")["metadata"] | {"name": "web-y"}},
    ]
    kinds = [each.code for each in audited(services=[SELECTING], slices=slices).findings()]
    assert kinds == ["E4", "E12"]


class TestClients:
    def test_control_plane_own_and_refused_requests_do_not_count(self) -> None:
        log = log_of(
            event(user={"username": "system:kube-controller-manager"}),
            event(user={"username": "system:serviceaccount:kube-system:endpoint-controller"}),
            event(userAgent="sliceplane"),
            event(responseStatus={"code": 403}),
            event(stage="RequestReceived"),
            event(objectRef={"resource": "endpointslices", "apiGroup": "discovery.k8s.io"}),
            event(objectRef={"resource": "endpoints", "apiGroup": "example.com"}),
            event(objectRef=None),
        )
        assert log.clients == ()
        assert log.lines == 8

    def test_a_watch_counts_once_also_if_it_is_older_than_the_log(self) -> None:
        both = log_of(event(verb="watch", stage="ResponseStarted"), event(verb="watch"))
        end_alone = log_of(event(verb="watch"))
        assert [each.requests for each in both.clients] == [{"watch": 1}]
        assert [(each.requests, each.everywhere) for each in end_alone.clients] == [
            ({"watch": 0}, True)
        ]

    def test_impersonation_counts_for_whom_it_was_done(self) -> None:
        log = log_of(event(impersonatedUser={"username": "jane"}))
        assert [each.user for each in log.clients] == ["jane"]

    @pytest.mark.parametrize(
        ("target", "concerned"),
        [
            ({}, True),
            ({"namespace": "shop"}, True),
            ({"namespace": "elsewhere"}, False),
            ({"namespace": "shop", "name": "web"}, True),
            ({"namespace": "shop", "name": "unknown"}, False),
        ],
    )
    def test_who_depends_on_the_controller(self, target: Document, concerned: bool) -> None:
        log = log_of(event(objectRef={"resource": "endpoints", **target}))
        found = reported(SOUND, log)
        assert [each.concerned for each in found.clients] == [concerned]
        assert found.safe is not concerned

    def test_who_writes_only_depends_on_nothing(self) -> None:
        found = reported(
            SOUND,
            log_of(
                event(
                    verb="update",
                    objectRef={"resource": "endpoints", "namespace": "shop", "name": "web"},
                )
            ),
        )
        assert found.safe

    def test_the_user_of_a_lock_is_no_reader(self) -> None:
        lock = body(
            "lock",
            metadata={
                "annotations": {
                    "control-plane.alpha.kubernetes.io/leader": '{"holderIdentity":"x"}'
                }
            },
        )
        auditor = audited(services=[SELECTING], endpoints=[lock])
        found = reported(
            auditor,
            log_of(
                event(
                    verb="get",
                    objectRef={"resource": "endpoints", "namespace": "shop", "name": "lock"},
                )
            ),
        )
        assert found.safe
        assert [(each.code, each.sentence) for each in found.findings] == [
            ("L6", "shop/lock: held by x, last renewed never")
        ]

    def test_readers_of_the_reverse_mirror_are_served(self) -> None:
        labels = {"endpoints.kubernetes.io/managed-by": "reverse-mirror.sliceplane.dev"}
        kept = body("web", metadata={"labels": labels}, subsets=subsets("10.0.0.1"))
        auditor = audited(
            services=[SELECTING], endpoints=[kept], slices=[slice_of("web", "10.0.0.1")]
        )
        assert reported(auditor, log_of(event())).safe

    def test_bounds(self) -> None:
        log = AuditLogUsage()
        for number in range(OBJECTS_MAX + 1):
            log.on_line(
                event(
                    objectRef={"resource": "endpoints", "namespace": "shop", "name": f"x{number}"}
                )
            )
        (client,) = log.clients
        assert (len(client.objects), client.more_objects) == (OBJECTS_MAX, True)
        assert [each.concerned for each in reported(SOUND, log).clients] == [True], (
            "who knows what else it reads"
        )
        for number in range(CLIENTS_MAX):
            log.on_line(event(user={"username": f"user-{number}"}))
        assert log.overflow == 1
        assert "there are more clients than the audit counts" in reported(SOUND, log).reasons

    def test_lines_that_are_no_events(self) -> None:
        log = log_of(b"nonsense\n", b"\xff\n", b"\n", b"[]\n", event())
        assert (log.lines, log.unreadable, len(log.clients)) == (4, 3, 1)

    def test_json_of_another_kind_is_no_log_without_readers(self) -> None:
        """A wrong file (a snapshot, a log of pods) must not make the verdict "no client was
        seen".
        """
        log = log_of(
            b"{}\n",
            b'{"kind":"Service","metadata":{"name":"web"}}\n',
            event(verb=""),
            event(stageTimestamp=""),
        )
        assert (log.lines, log.unreadable) == (4, 4), (
            "the command refuses a log in which nothing is an event"
        )


@pytest.mark.parametrize(
    ("annotation", "detail"),
    [
        (
            '{"holderIdentity":"a_1","renewTime":"2026-01-01T00:00:00Z","leaderTransitions":3}',
            "held by a_1, last renewed 2026-01-01T00:00:00Z",
        ),
        ("{}", "held by nobody, last renewed never"),
        ("nonsense", "its leader-election record cannot be read"),
    ],
)
def test_who_holds_a_lock(annotation: str, detail: str) -> None:
    lock = body(
        "lock", metadata={"annotations": {"control-plane.alpha.kubernetes.io/leader": annotation}}
    )
    assert [(each.code, each.sentence) for each in audited(endpoints=[lock]).findings()] == [
        ("L6", f"shop/lock: {detail}")
    ]


def test_slices_of_other_clusters_are_not_expected_in_endpoints() -> None:
    """A mesh of clusters adds slices to a Service with a selector; its Endpoints never had those
    addresses.
    """
    remote = slice_of("web", "10.9.0.1", manager="mesh.example.com")
    slices = [
        slice_of("web", "10.0.0.1"),
        remote | {"metadata": remote["metadata"] | {"name": "web-remote"}},
    ]
    found = audited(
        services=[SELECTING], endpoints=[body("web", subsets=subsets("10.0.0.1"))], slices=slices
    )
    assert found.findings() == ()


class TestShown:
    def test_many_rows_are_cut_and_the_verdict_is_the_last_line(self) -> None:
        auditor = audited(
            endpoints=[
                body(f"gone-{number:03}", subsets=subsets("10.0.0.1")) for number in range(30)
            ]
        )
        text = as_text(reported(auditor)).splitlines()
        assert f"         and {30 - ALIKE_MAX} more of L3 (--output json has all)" in text
        assert text[-1] == (
            "safe to switch the Endpoints controller off: no, because 30 findings are against "
            "it (L3)"
        )
        assert len(reported(auditor).as_document()["findings"]) == 30

    def test_what_cannot_be_read_is_no_yes(self) -> None:
        auditor = audited()
        auditor.on_object("endpoints", b'{"metadata": 5}')
        auditor.on_object("services", b"\xff")
        found = reported(auditor)
        assert found.verdict.endswith("no, because 2 objects could not be read")
        assert "  1 endpoints could not be read" in as_text(found).splitlines()

    def test_a_list_that_begins_anew_counts_once(self) -> None:
        auditor = audited(slices=[slice_of("web", "10.0.0.1")])
        auditor.forget("endpointslices")
        assert auditor.counts["endpointslices"] == 0
        assert auditor.findings() == ()


@pytest.mark.parametrize(
    ("spelling", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("010.0.0.01", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("FD00::0:1", "fd00::1"),
    ],
)
def test_addresses_however_spelled(spelling: str, plain: str) -> None:
    address = packed(spelling)
    assert address is not None
    assert spelled(address) == plain
    assert list(unpack(pack([(address, READY), (address, READY), (address, WAITING)]))) == [
        (address, WAITING),
        (address, READY),
    ]


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.256", "1.2.3.4.5", "fd00::1%eth0", "name.example.com", "1.2.3.٤"]
)
def test_what_is_no_address(text: str) -> None:
    assert packed(text) is None


@pytest.mark.parametrize("others", [(), ("10.0.0.9",)])
def test_a_target_port_that_does_not_exist_is_told_as_that_and_not_as_a_controller_that_is_off(
    others: tuple[str, ...],
) -> None:
    service = body(
        "web", spec={"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "htpp"}]}
    )
    bare = {**slice_of("web", "10.0.0.1", "10.0.0.2"), "ports": []}
    good = {**slice_of("web", *others), "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]}
    stored = body("web", subsets=subsets(*others) if others else [])
    auditor = audited(services=[service], endpoints=[stored], slices=[bare, good])
    (found,) = auditor.findings()
    assert found.code == "T2"
    assert (
        found.sentence
        == 'shop/web: 2 addresses (10.0.0.1, 10.0.0.2), no container port has the name "htpp"'
    )
    told = report(auditor, auditor.findings(), None)
    assert told.safe, "it says nothing about the Endpoints controller"
    assert "kubectl -n shop edit service web" in as_text(told)


def test_an_address_that_endpoints_lack_beside_a_missing_port_is_stale_all_the_same() -> None:
    service = body(
        "web", spec={"selector": {"a": "b"}, "ports": [{"port": 80, "targetPort": "htpp"}]}
    )
    bare = {**slice_of("web", "10.0.0.1"), "ports": []}
    good = {**slice_of("web", "10.0.0.9"), "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]}
    auditor = audited(services=[service], endpoints=[body("web", subsets=[])], slices=[bare, good])
    kinds = {each.code: each.sentence for each in auditor.findings()}
    assert kinds.keys() == {"L1", "T2"}
    assert kinds["L1"] == "shop/web: 1 address only in EndpointSlices (10.0.0.9)"
