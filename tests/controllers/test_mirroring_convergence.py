"""Any history of Endpoints, Services, foreign edits, lagging watches, failed writes and restarts
converges to what a plain reading of each object says.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.controllers.converging import ConvergingController
from tests.controllers.mirrored_plane import custom, foreign
from tests.effort import machine
from tests.slices.fake_cluster import make_service, replace

from sliceplane.api.core import (
    CoreEndpointPort,
    EndpointAddress,
    Endpoints,
    EndpointSubset,
    Service,
)
from sliceplane.api.discovery import (
    ANNOTATION_LEADER,
    LABEL_MANAGED_BY,
    LABEL_SERVICE_NAME,
    LABEL_SKIP_MIRROR,
    MANAGED_BY_CONTROLLER,
    MANAGED_BY_MIRRORING,
    EndpointSlice,
)
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import EndpointSlices, EndpointsObjects, Services
from sliceplane.controllers.endpointslice_mirroring import (
    EndpointSliceMirroringController,
    MirroringConfig,
)
from sliceplane.kit.ip import family, parse_lenient

LIMIT = 4
NAMES = st.sampled_from(("web", "api"))
#: port sets that share no port, so that a subset is what it looks like
PORTS = (
    (),
    (CoreEndpointPort(name="a", port=80),),
    (CoreEndpointPort(name="b", port=81, protocol="UDP"),),
)
addresses = st.lists(
    st.sampled_from(("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:db8::2", "junk")),
    unique=True,
    max_size=5,
)


@st.composite
def endpoint_subsets(draw: st.DrawFn) -> tuple[EndpointSubset, ...]:
    found = []
    for ports in draw(st.lists(st.sampled_from(PORTS), unique=True, max_size=3)):
        ips = draw(addresses)
        cut = draw(st.integers(0, len(ips)))
        ready, waiting = (
            tuple(EndpointAddress(ip=ip) for ip in part) for part in (ips[:cut], ips[cut:])
        )
        found.append(EndpointSubset(addresses=ready, not_ready_addresses=waiting, ports=ports))
    return tuple(found)


Meaning = dict[tuple[str, tuple[object, ...]], dict[str, bool]]


def desired(endpoints: Endpoints) -> Meaning:
    """By family and ports: which addresses, ready or not."""
    merged: dict[frozenset[tuple[str, bool]], tuple[EndpointSubset, list[object]]] = {}
    for subset in endpoints.subsets or ():
        content = frozenset(
            (each.ip, ready)
            for ready, side in ((True, subset.addresses), (False, subset.not_ready_addresses))
            for each in side or ()
        )
        if not subset.ports:
            content |= {("all ports", True)}  # no port among others
        if subset.addresses or subset.not_ready_addresses:
            merged.setdefault(content, (subset, []))[1].extend(
                (p.name, p.port) for p in subset.ports or ()
            )
    found: Meaning = {}
    for subset, ports in merged.values():
        room = LIMIT
        for ready, side in ((True, subset.addresses), (False, subset.not_ready_addresses)):
            for ip in sorted(each.ip for each in side or ()):
                parsed = parse_lenient(ip)
                if parsed is not None and room:
                    room -= 1
                    found.setdefault((family(parsed), tuple(sorted(ports))), {})[str(parsed)] = (
                        ready  # type: ignore[type-var]
                    )
    return found


class Mirror(ConvergingController):
    controller: EndpointSliceMirroringController
    #: endpoints in one slice; ``None``: all of a family and set of ports
    per_slice: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.theirs = [
            self.cluster.put(foreign("theirs", "someone")),
            self.cluster.put(foreign("none", "")),
        ]
        self.cluster.put(make_service(selector=None))
        self.cluster.put(custom())
        self.made = 0
        self.begin()

    def make(self) -> EndpointSliceMirroringController:
        config = MirroringConfig(
            max_endpoints_per_subset=LIMIT, max_endpoints_per_slice=self.per_slice
        )
        return EndpointSliceMirroringController(config)

    # -- the world

    @rule(
        name=NAMES,
        subsets=endpoint_subsets(),
        labels=st.sampled_from((None, None, None, None, {"a": "b"}, {LABEL_SKIP_MIRROR: "true"})),
        annotations=st.sampled_from((None, None, None, None, {"a": "b"}, {ANNOTATION_LEADER: "x"})),
        anew=st.booleans(),
    )
    def endpoints(
        self,
        name: str,
        subsets: tuple[EndpointSubset, ...],
        labels: dict[str, str] | None,
        annotations: dict[str, str] | None,
        *,
        anew: bool,
    ) -> None:
        if anew:
            self.made += 1
            self.cluster.remove(EndpointsObjects, "shop", name)
        new = custom(
            name=name,
            labels=labels,
            annotations=annotations,
            uid=f"{name}-{self.made if anew else 0}",
        )
        self.cluster.put(replace(new, subsets=subsets or None))

    @rule(name=NAMES)
    def endpoints_go(self, name: str) -> None:
        self.cluster.remove(EndpointsObjects, "shop", name)

    @rule(name=NAMES, selector=st.sampled_from((None, None, None, {}, {"app": "web"})))
    def service(self, name: str, selector: dict[str, str] | None) -> None:
        self.cluster.put(make_service(name, selector=selector))

    @rule(name=NAMES)
    def service_goes(self, name: str) -> None:
        self.cluster.remove(Services, "shop", name)

    @rule(name=NAMES, kind=st.sampled_from(("IPv4", "IPv6")), there=st.booleans())
    def native(self, name: str, kind: str, *, there: bool) -> None:
        labels = {LABEL_SERVICE_NAME: name, LABEL_MANAGED_BY: MANAGED_BY_CONTROLLER}
        meta = ObjectMeta(
            name=f"native-{name}-{kind.lower()}",
            namespace="shop",
            uid=f"n-{name}-{kind}",
            labels=labels,
        )
        if there:
            self.cluster.put(EndpointSlice(metadata=meta, address_type=kind))
        else:
            self.cluster.remove(EndpointSlices, "shop", meta.name)

    def ours(self) -> list[EndpointSlice]:
        found = self.cluster.slices()
        return [
            s
            for s in found
            if (s.metadata.labels or {}).get(LABEL_MANAGED_BY) == MANAGED_BY_MIRRORING
        ]

    @precondition(lambda self: self.ours())
    @rule(
        which=st.integers(0, 9),
        how=st.sampled_from(("delete", "empty", "double", "label", "annotate", "disown")),
    )
    def edit(self, which: int, how: str) -> None:
        each = self.ours()[which % len(self.ours())]
        meta = each.metadata
        match how:
            case "delete":
                self.cluster.remove(EndpointSlices, "shop", meta.name)
            case "empty":
                self.cluster.put(replace(each, endpoints=()))
            case "double":
                self.cluster.put(
                    replace(each, metadata=replace(meta, name=f"{meta.name}x", uid=f"{meta.uid}x"))
                )
            case "label":
                self.cluster.put(
                    replace(
                        each, metadata=replace(meta, labels={**(meta.labels or {}), "odd": "1"})
                    )
                )
            case "annotate":
                self.cluster.put(replace(each, metadata=replace(meta, annotations={"odd": "1"})))
            case "disown":
                self.cluster.put(replace(each, metadata=replace(meta, owner_references=None)))

    # -- at rest

    def teardown(self) -> None:
        self.settle()
        for name in ("web", "api"):
            self.compare(name)
        for each in self.theirs:
            assert self.cluster.objects[EndpointSlices.key, "shop", each.metadata.name] == each
        self.begin()
        before = len(self.cluster.writes)
        self.now, _ = self.cluster.settle(self.controller, self.now)
        assert self.cluster.writes[before:] == [], "a restart wrote what was already so"

    def compare(self, name: str) -> None:
        service = self.cluster.objects.get((Services.key, "shop", name))
        endpoints = self.cluster.objects.get((EndpointsObjects.key, "shop", name))
        slices = [
            each for each in self.ours() if (each.metadata.labels or {})[LABEL_SERVICE_NAME] == name
        ]
        shown: Meaning = {}
        fills: dict[object, list[int]] = {}
        for each in slices:
            key = (each.address_type, tuple((p.name, p.port) for p in each.ports or ()))
            holds = {e.addresses[0]: bool(e.conditions.ready) for e in each.endpoints or ()}
            assert not shown.get(key, {}).keys() & holds.keys(), (
                f"one address in two slices of {key}"
            )
            shown.setdefault(key, {}).update(holds)
            fills.setdefault(key, []).append(len(holds))
        for key, sizes in fills.items():
            self.check_fills(key, sorted(sizes))
        wanted: Meaning = {}
        if (
            isinstance(service, Service)
            and not service.spec.selector
            and isinstance(endpoints, Endpoints)
        ):
            meta = endpoints.metadata
            skipped = (meta.labels or {}).get(LABEL_SKIP_MIRROR) == "true"
            if not skipped and ANNOTATION_LEADER not in (meta.annotations or {}):
                wanted = desired(endpoints)
            for each in slices:
                assert [owner.uid for owner in each.metadata.owner_references or ()] == [meta.uid]
                assert "odd" not in (each.metadata.labels or {})
                assert (each.metadata.annotations or {}) == (meta.annotations or {})
        assert shown == wanted

    def check_fills(self, key: object, fills: list[int]) -> None:
        most = self.per_slice
        if most is None:
            assert len(fills) == 1, f"several slices of {key}"
        else:
            assert 0 < fills[0] <= fills[-1] <= most, f"{key}: {fills}"
            assert len(fills) == 1 or fills[0] + fills[1] > most, (
                f"{key}: two slices fit into one: {fills}"
            )


class PackedMirror(Mirror):
    per_slice = 2


TestMirror = Mirror.TestCase
TestMirror.settings = machine(120)
TestPackedMirror = PackedMirror.TestCase
TestPackedMirror.settings = machine(60)
