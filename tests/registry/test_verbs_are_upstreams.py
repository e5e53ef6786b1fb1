"""What a kind can be asked is what upstream's published discovery documents say of it
(``api/discovery/`` of kubernetes/kubernetes), but for what this table names.

The list is upstream's, in ``data/upstream_discovery.txt``; it is compared with the documents that
our server sends. ``WITHOUT`` is ours, and says why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from sliceplane.api.scheme import ALL_VERBS, LISTED, SERVED, UNDISCOVERED
from sliceplane.server.io.nonresource.discovery import resource_entry, subresource_entries

LIST: Final = Path(__file__).parent / "data" / "upstream_discovery.txt"
ALL: Final = frozenset(ALL_VERBS)
_NO_KUBELET: Final = "a kubelet or a Pod answers it, and nothing here runs containers"
_BY_THE_SERVER: Final = (
    "flow schemas and priority levels are the server's own and cannot be written"
)
_LISTED: Final = "only lists of it are served, always empty, for controllers that watch it"
_WRITES: Final = ALL - {"get", "list", "watch"}
_STATUS: Final = frozenset(("get", "patch", "update"))
#: group version and resource, as a discovery document names it -> the verbs that we do without, and
#: why
WITHOUT: Final[dict[tuple[str, str], tuple[frozenset[str], str]]] = {
    **{
        ("v1", f"pods/{name}"): (ALL, _NO_KUBELET)
        for name in ("attach", "checkpoint", "exec", "log", "portforward", "proxy")
    },
    **{("v1", f"{plural}/proxy"): (ALL, _NO_KUBELET) for plural in ("nodes", "services")},
    **{
        ("flowcontrol.apiserver.k8s.io/v1", f"{plural}{subresource}"): (verbs, _BY_THE_SERVER)
        for plural in ("flowschemas", "prioritylevelconfigurations")
        for subresource, verbs in (("", _WRITES), ("/status", _STATUS))
    },
    **{
        (resource.api_version, resource.plural): (_WRITES, _LISTED)
        for resource in LISTED
        if resource not in UNDISCOVERED
    },
    **{
        (api_version, f"{plural}/{subresource}"): (ALL, _LISTED)
        for api_version, plural, subresources in (
            ("autoscaling/v2", "horizontalpodautoscalers", ("status",)),
            ("batch/v1", "cronjobs", ("status",)),
            ("batch/v1", "jobs", ("status",)),
            ("certificates.k8s.io/v1", "certificatesigningrequests", ("approval", "status")),
            ("resource.k8s.io/v1", "resourceclaims", ("status",)),
        )
        for subresource in subresources
    },
    ("v1", "componentstatuses"): (
        ALL,
        "deprecated since 1.19; it tells of processes that are not here",
    ),
}


class Entry(NamedTuple):
    kind: str
    scope: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    verbs: frozenset[str]


def recorded() -> dict[tuple[str, str], Entry]:
    entries = {}
    for line in LIST.read_text().splitlines():
        if not line.startswith("#"):
            version, name, kind, scope, *lists = line.split(" ")
            short_names, categories, verbs = (
                () if text == "-" else tuple(text.split(",")) for text in lists
            )
            entries[version, name] = Entry(kind, scope, short_names, categories, frozenset(verbs))
    return entries


def told(entry: dict[str, Any]) -> Entry:
    version = entry.get("version", "")
    group = f"{entry['group']}/{version}." if version else ""
    return Entry(
        group + entry["kind"],
        "namespaced" if entry["namespaced"] else "cluster",
        tuple(entry.get("shortNames", ())),
        tuple(entry.get("categories", ())),
        frozenset(entry["verbs"]),
    )


def ours() -> dict[tuple[str, str], Entry]:
    return {
        (resource.api_version, entry["name"]): told(entry)
        for resource in SERVED
        if resource not in UNDISCOVERED
        for entry in (resource_entry(resource), *subresource_entries(resource))
    }


def test_every_verb_and_subresource_of_upstream_is_served_or_named_with_a_reason() -> None:
    upstream = recorded()
    served = ours()
    missing = {}
    for place, theirs in upstream.items():
        here = served.get(place, theirs._replace(verbs=frozenset()))
        assert here._replace(verbs=theirs.verbs) == theirs, place
        assert here.verbs <= theirs.verbs, place
        if here.verbs != theirs.verbs:
            missing[place] = theirs.verbs - here.verbs
    assert missing == {
        place: verbs & upstream[place].verbs for place, (verbs, _) in WITHOUT.items()
    }
    assert all(why for _, why in WITHOUT.values())


def test_nothing_is_served_that_upstream_does_not_know() -> None:
    assert not ours().keys() - recorded().keys()
