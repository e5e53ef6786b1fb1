"""What a kind can be asked is what upstream's published discovery documents say of it (``api/discovery/`` of
kubernetes/kubernetes), but for what this table names.

The table is upstream's; ``WITHOUT`` is ours, and says why.
"""

from __future__ import annotations

from typing import Final

from sliceplane.api.requests import SUBRESOURCES
from sliceplane.api.scheme import ALL_VERBS, SERVED

ALL: Final = frozenset(ALL_VERBS)
STATUS: Final = frozenset(("get", "patch", "update"))
CREATE: Final = frozenset(("create",))
STREAM: Final = frozenset(("create", "get"))
PROXY: Final = frozenset(("create", "delete", "get", "patch", "update"))

_POD: Final = {
    "attach": STREAM,
    "binding": CREATE,
    "ephemeralcontainers": STATUS,
    "eviction": CREATE,
    "exec": STREAM,
    "log": frozenset(("get",)),
    "portforward": STREAM,
    "proxy": PROXY,
    "resize": STATUS,
    "status": STATUS,
}
_STATUS: Final = {"status": STATUS}
_SCALE: Final = {"scale": STATUS, "status": STATUS}
#: document -> resource -> its own verbs, and those of its subresources
UPSTREAM: Final[dict[str, dict[str, tuple[frozenset[str], dict[str, frozenset[str]]]]]] = {
    "v1": {
        **dict.fromkeys(("configmaps", "endpoints", "events", "limitranges", "podtemplates", "secrets"), (ALL, {})),
        "namespaces": (ALL - {"deletecollection"}, {"finalize": frozenset(("update",)), **_STATUS}),
        "nodes": (ALL, {"proxy": PROXY, **_STATUS}),
        "pods": (ALL, _POD),
        "replicationcontrollers": (ALL, _SCALE),
        "resourcequotas": (ALL, _STATUS),
        "serviceaccounts": (ALL, {"token": CREATE}),
        "services": (ALL, {"proxy": PROXY, **_STATUS}),
    },
    "apps/v1": {
        "daemonsets": (ALL, _STATUS),
        **dict.fromkeys(("deployments", "replicasets", "statefulsets"), (ALL, _SCALE)),
    },
    "authentication.k8s.io/v1": dict.fromkeys(("selfsubjectreviews", "tokenreviews"), (CREATE, {})),
    "authorization.k8s.io/v1": dict.fromkeys(
        ("localsubjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews"),
        (CREATE, {}),
    ),
    "coordination.k8s.io/v1": {"leases": (ALL, {})},
    "discovery.k8s.io/v1": {"endpointslices": (ALL, {})},
    "events.k8s.io/v1": {"events": (ALL, {})},
    "flowcontrol.apiserver.k8s.io/v1": dict.fromkeys(("flowschemas", "prioritylevelconfigurations"), (ALL, _STATUS)),
    "networking.k8s.io/v1": {
        **dict.fromkeys(("ingressclasses", "ipaddresses", "networkpolicies"), (ALL, {})),
        **dict.fromkeys(("ingresses", "servicecidrs"), (ALL, _STATUS)),
    },
    "node.k8s.io/v1": {"runtimeclasses": (ALL, {})},
    "policy/v1": {"poddisruptionbudgets": (ALL, _STATUS)},
    "rbac.authorization.k8s.io/v1": dict.fromkeys(
        ("clusterrolebindings", "clusterroles", "rolebindings", "roles"), (ALL, {})
    ),
    "scheduling.k8s.io/v1": {"priorityclasses": (ALL, {})},
}
_NO_KUBELET: Final = "a kubelet answers it, and nothing here runs containers"
_NO_DISRUPTION: Final = "evictions ask how many disruptions a budget allows, which no controller here works out"
_BY_THE_SERVER: Final = "flow schemas and priority levels are the server's own and cannot be written"
_WRITES: Final = ALL - {"get", "list", "watch"}
#: document, resource, subresource ("": itself) -> the verbs that we do without, and why
WITHOUT: Final[dict[tuple[str, str, str], tuple[frozenset[str], str]]] = {
    **{("v1", "pods", name): (_POD[name], _NO_KUBELET) for name in ("attach", "exec", "log", "portforward", "proxy")},
    **{("v1", plural, "proxy"): (PROXY, _NO_KUBELET) for plural in ("nodes", "services")},
    ("v1", "pods", "ephemeralcontainers"): (STATUS, _NO_KUBELET),
    ("v1", "pods", "resize"): (STATUS, _NO_KUBELET),
    ("v1", "pods", "eviction"): (CREATE, _NO_DISRUPTION),
    **{
        ("flowcontrol.apiserver.k8s.io/v1", plural, subresource): (verbs, _BY_THE_SERVER)
        for plural in ("flowschemas", "prioritylevelconfigurations")
        for subresource, verbs in (("", _WRITES), ("status", STATUS))
    },
}


def test_every_verb_and_subresource_of_upstream_is_served_or_named_with_a_reason() -> None:
    missing = {}
    for resource in SERVED:
        verbs, subresources = UPSTREAM[resource.api_version][resource.plural]
        ours = {"": frozenset(resource.verbs)}
        ours |= {name: frozenset(SUBRESOURCES[name].verbs) for name in resource.subresources}
        theirs = {"": verbs, **subresources}
        assert not {name: ours[name] - theirs.get(name, frozenset()) for name in ours if ours[name] - theirs[name]}
        for name in theirs:
            lacking = theirs[name] - ours.get(name, frozenset())
            if lacking:
                missing[resource.api_version, resource.plural, name] = lacking
    assert missing == {place: verbs for place, (verbs, _) in WITHOUT.items()}
    assert all(why for _, why in WITHOUT.values())


def test_no_kind_of_the_table_is_left_out() -> None:
    ours = {(resource.api_version, resource.plural) for resource in SERVED}
    assert ours == {(document, plural) for document, plurals in UPSTREAM.items() for plural in plurals}
