"""Derives the parts of ``status`` from the facts about a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from sliceplane.api.core import Lease, Node
from sliceplane.api.findings.text import word_of
from sliceplane.api.findings.wording import clipped, count, lasting, part, since, some
from sliceplane.consume.drain.relayed import flatten
from sliceplane.consume.progress import ANNOTATION_REVISION, LEASE_PREFIX
from sliceplane.diagnose.drift.facts import report_of_lease
from sliceplane.diagnose.drift.relays import WELL, relay_lines, relay_tree
from sliceplane.diagnose.explain.case import list_names
from sliceplane.diagnose.explain.checks.slices import LEADERS
from sliceplane.diagnose.explain.scrape import ScrapedSample, samples, total
from sliceplane.diagnose.explain.status import Part, PlaneStatus, State, StatusFacts

#: label of the Leases of kube-apiservers (KEP-1965), which are in the namespace of leaders' Leases
LABEL_IDENTITY: Final = "apiserver.kubernetes.io/identity"
LEADER_NAMESPACE: Final = "kube-system"
NODE_NAMESPACE: Final = "kube-node-lease"
#: a server whose memory is older does not read its storage any more
STORAGE_STALE_S: Final = 5.0
QUEUE_LONG: Final = 1_000
#: a key that is processed for longer is stuck
STUCK_S: Final = 60.0
FINDINGS_MAX: Final = 5
#: rows of relays; JSON has all
RELAYS_MAX: Final = 20
#: a kubelet renews its Lease every 10 s, and its Node counts as lost after 40 s (kubernetes.io,
#: Nodes, heartbeats)
LATE_S: Final = 40.0
_NAMES: Final = frozenset(
    {
        "apiserver_longrunning_requests",
        "apiserver_registered_watchers",
        "apiserver_resource_objects",
        "apiserver_storage_objects",
        "apiserver_storage_revision",
        "apiserver_storage_size_bytes",
        "sliceplane_hub_overflowed_watches_total",
        "sliceplane_object_bytes",
        "sliceplane_storage_failures_total",
        "sliceplane_storage_spare_bytes",
        "sliceplane_storage_staleness_seconds",
        "workqueue_depth",
        "workqueue_longest_running_processor_seconds",
    }
)


def status(facts: StatusFacts) -> PlaneStatus:
    metrics = samples(facts.metrics.text, _NAMES)
    parts = (
        _servers(facts),
        _storage(facts, metrics),
        _controllers(facts, metrics),
        _queues(facts, metrics),
        _relays(facts),
        _nodes(facts),
        _consumers(facts, metrics),
    )
    bad = [finding for finding in facts.lint.findings if word_of(finding) != "note"]
    unread = [phrase for part in parts for phrase in part.unread]
    return PlaneStatus(
        parts=parts,
        findings=tuple(bad[:FINDINGS_MAX]),
        more=len(bad) - len(bad[:FINDINGS_MAX]),
        too_young=len(facts.lint.too_young),
        services=facts.lint.services,
        is_blind=facts.lint.is_blind,
        unchecked=tuple(dict.fromkeys((*unread, *facts.lint.unchecked))),
        missing_rights=facts.lint.missing_rights,
    )


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


def _servers(facts: StatusFacts) -> Part:
    try:
        version = msgspec.json.decode(facts.version.text or "{}", type=_Version).git_version
    except msgspec.DecodeError:
        version = ""
    page = facts.readyz
    checks = [line for line in page.text.splitlines() if line.startswith(("[+]", "[-]"))]
    failed = [line[3:].split()[0] for line in checks if line.startswith("[-]") and len(line) > 3]
    is_ready = page.status == 200 and not page.why and not failed
    unread = []
    state: State = "well" if is_ready else "attention"
    if is_ready:
        readiness = f"ready, {count(len(checks), 'check')}" if checks else "ready"
    elif page.status >= 500 or failed:
        readiness = f"not ready: {some(failed) or clipped(page.text or page.why)}"
    else:
        state, readiness = "unknown", "readiness unknown"
        unread.append(f"/readyz ({page.why})")
    if facts.version.why:
        unread.append(f"/version ({facts.version.why})")
    lines = [" ".join(filter(None, (facts.server, version))) + f": {readiness}"]
    others = [
        lease
        for lease in _leases(facts, LEADER_NAMESPACE)
        if LABEL_IDENTITY in (lease.metadata.labels or {})
    ]
    alive = sum(_is_renewed(lease, facts.now) for lease in others)
    if others:
        lines.append(
            f"{part(alive, len(others), 'server', 'renews')} "
            f"{'its Lease' if alive == 1 else 'their Leases'}"
        )
    figures = {
        "url": facts.server,
        "version": version,
        "ready": None if state == "unknown" else is_ready,
        "failedChecks": failed,
        "servers": len(others),
        "serversAlive": alive,
    }
    return Part("servers", state, tuple(lines), figures, tuple(unread))


def _storage(facts: StatusFacts, metrics: Mapping[str, list[ScrapedSample]]) -> Part:
    size = total(metrics, "apiserver_storage_size_bytes")
    in_memory = total(metrics, "sliceplane_object_bytes")
    if facts.metrics.why or (size is None and in_memory is None):
        return _unread_part("storage", facts.metrics.why or "not in the server's metrics")
    revision = total(metrics, "apiserver_storage_revision")
    of_objects = (
        metrics.get("apiserver_resource_objects") or metrics.get("apiserver_storage_objects") or ()
    )
    # a server that could not count the objects of a resource says -1
    counted = [int(sample.value) for sample in of_objects if sample.value >= 0]
    objects = sum(counted) if counted else None
    failures = total(metrics, "sliceplane_storage_failures_total")
    stale_s = total(metrics, "sliceplane_storage_staleness_seconds") or 0.0
    spare = total(metrics, "sliceplane_storage_spare_bytes")
    phrases = ["objects not counted" if objects is None else count(objects, "object")]
    if size is None:  # ``--data-dir memory:``, or the file is etcd's
        phrases += [f"{(in_memory or 0.0) / 1e6:.1f} MB in memory", "no database file"]
    else:
        phrases.append(f"{size / 1e6:.1f} MB" + (f" ({spare / 1e6:.1f} MB spare)" if spare else ""))
    if revision is not None:
        phrases.append(f"revision {revision:.0f}")
    if failures:
        phrases.append(f"{count(int(failures), 'batch')} not stored since the server's start")
    if stale_s > STORAGE_STALE_S:
        phrases.append(f"the server's memory is {lasting(stale_s)} behind")
    figures = {
        "objects": objects,
        "bytes": None if size is None else int(size),
        "spareBytes": None if spare is None else int(spare),
        "objectBytes": None if in_memory is None else int(in_memory),
        "revision": None if revision is None else int(revision),
        "failures": None if failures is None else int(failures),
        "secondsBehind": round(stale_s, 1),
    }
    return Part(
        "storage",
        "attention" if stale_s > STORAGE_STALE_S else "well",
        (", ".join(phrases),),
        figures,
    )


def _controllers(facts: StatusFacts, metrics: Mapping[str, list[ScrapedSample]]) -> Part:
    why = facts.leases[LEADER_NAMESPACE]
    leases = [
        lease
        for lease in _leases(facts, LEADER_NAMESPACE)
        if LABEL_IDENTITY not in (lease.metadata.labels or {})
    ]
    within = sum(
        sample.labels.get("name") == "endpoint_slice"
        for sample in metrics.get("workqueue_depth", ())
    )
    rows = []
    for lease in leases:
        age = since(lease.spec.renew_time, facts.now)
        holder = lease.spec.holder_identity or ""
        rows.append(
            {
                "name": lease.metadata.name,
                "holder": holder,
                "held": _is_renewed(lease, facts.now),
                "secondsSinceRenewal": None if age is None else round(age, 1),
            }
        )
    lines = [_leader_text(row) for row in rows]
    leading = any(row["held"] for row in rows if row["name"] in LEADERS)
    state: State = "well"
    unread: tuple[str, ...] = ()
    if isinstance(why, str) and not within:
        return _unread_part("controllers", why)
    if within:
        lines.insert(0, "the EndpointSlice controllers run within the server")
    elif facts.metrics.why and not any(row["name"] in LEADERS for row in rows):
        return _unread_part("controllers", facts.metrics.why)  # they may run within the server
    elif not leading:
        state = "attention"
        lines.insert(
            0,
            "the EndpointSlice controllers have no leader: no "
            f"{' or '.join(LEADERS)} renews its Lease",
        )
    return Part(
        "controllers", state, tuple(lines), {"withinServer": bool(within), "leases": rows}, unread
    )


def _leader_text(row: Mapping[str, Any]) -> str:
    age = row["secondsSinceRenewal"]
    renewal = "never renewed" if age is None else f"renewed {lasting(age)} ago"
    if row["held"]:
        return f"{row['name']}: {row['holder']}, {renewal}"
    return f"{row['name']}: no leader" + (
        f", {row['holder']} did, {renewal}" if row["holder"] else ""
    )


def _queues(facts: StatusFacts, metrics: Mapping[str, list[ScrapedSample]]) -> Part:
    depths = {
        sample.labels.get("name", ""): sample.value for sample in metrics.get("workqueue_depth", ())
    }
    if facts.metrics.why or not depths:
        return _unread_part("queues", facts.metrics.why or "none in the server's metrics")
    running = {
        sample.labels.get("name", ""): sample.value
        for sample in metrics.get("workqueue_longest_running_processor_seconds", ())
    }
    longest = max(sorted(depths), key=lambda name: depths[name])
    slowest = max(sorted(running), key=lambda name: running[name], default="")
    stuck_s = running.get(slowest, 0.0)
    waiting = int(sum(depths.values()))
    line = f"{count(waiting, 'key', 'waits')} in {count(len(depths), 'queue')}"
    if depths[longest]:
        line += f", most in {longest}: {depths[longest]:,.0f}"
    if stuck_s > STUCK_S:
        line += f"; {slowest} works on one for {lasting(stuck_s)}"
    figures = {
        "queues": len(depths),
        "waiting": waiting,
        "longest": {"name": longest, "waiting": int(depths[longest])},
        "longestRunningSeconds": round(stuck_s, 1),
    }
    bad = depths[longest] >= QUEUE_LONG or stuck_s > STUCK_S
    return Part("queues", "attention" if bad else "well", (line,), figures)


def _relays(facts: StatusFacts) -> Part:
    if isinstance(why := facts.leases[NODE_NAMESPACE], str):
        return _unread_part("relays", why)
    rows = relay_tree(_leases(facts, NODE_NAMESPACE), facts.now)
    if not rows:
        return Part("relays", "well", (), {"relays": []})
    others = [f"{row.name} ({row.state})" for row in rows if row.state != "ready"]
    parents = dict.fromkeys(row.parent for row in rows if row.level == 1)
    line = f"{part(len(rows) - len(others), len(rows), 'relay')} ready below {some(list(parents))}"
    if others:
        line += f"; not {some(others)}"
    return Part(
        "relays",
        "well" if all(row.state in WELL for row in rows) else "attention",
        (line,),
        {"relays": [row.as_document() for row in rows]},
        table=relay_lines(rows, RELAYS_MAX),
    )


def _nodes(facts: StatusFacts) -> Part:
    if isinstance(facts.nodes, str):
        return _unread_part("nodes", facts.nodes)
    names = list_names(facts.nodes)
    unready = [node.metadata.name for node in facts.nodes if _is_ready(node) is False]
    lines = [f"{part(len(names) - len(unready), len(names), 'Node')} ready"]
    if unready:
        lines[0] += f"; not {some(unready)}"
    unread: list[str] = []
    why = facts.leases[NODE_NAMESPACE]
    leases = {lease.metadata.name: lease for lease in _leases(facts, NODE_NAMESPACE)}
    kubelets = {name: _age(leases[name], facts.now) for name in names if name in leases}
    late = {name: age for name, age in kubelets.items() if age > LATE_S}
    proxies = proxies_by_name(leases.values())
    silent = [name for name, lease in proxies.items() if report_of_lease(lease).is_late(facts.now)]
    if isinstance(why, str):
        unread.append(f"how fresh nodes are ({why})")
    if kubelets:
        lines.append(f"kubelets: {_freshness(kubelets, late)}")
    ages = {name: _age(lease, facts.now) for name, lease in proxies.items()}
    revisions = _revisions(proxies)
    if proxies:
        lines.append(f"node proxies: {_freshness(ages, {name: ages[name] for name in silent})}")
        if revisions:
            low, high = min(revisions.values()), max(revisions.values())
            last = min(sorted(revisions), key=lambda name: revisions[name])
            lines.append(
                f"they hold version {high}" + (f"; {last} holds {low}" if low < high else "")
            )
    observed = _observed(proxies)
    if observed:
        lines.append(f"rules of other proxies: {_by_program(observed)}")
    unreported = [name for name in names if proxies and name not in proxies]
    if unreported:
        lines.append(f"no report of their rules: {some(unreported)}")
    figures = {
        "nodes": len(names),
        "ready": len(names) - len(unready),
        "notReady": unready,
        "kubelets": _ages(kubelets, late),
        "proxies": {**_ages(ages, silent), "versions": revisions, "observed": observed},
    }
    bad = bool(unready or late or silent)
    return Part("nodes", "attention" if bad else "well", tuple(lines), figures, tuple(unread))


def proxies_by_name(leases: Iterable[Lease]) -> dict[str, Lease]:
    """Returns the Leases in which node proxies report, also those that relays report for, by the
    name that each has for itself.
    """
    return {
        lease.metadata.name.removeprefix(LEASE_PREFIX): lease
        for lease in flatten(leases)
        if lease.metadata.name.startswith(LEASE_PREFIX)
    }


def _freshness(ages: Mapping[str, float], late: Mapping[str, float]) -> str:
    """Returns ``3 of 4 fresh, the slowest reported 8 s ago; silent: node-7 for 4 min``."""
    fresh = [age for name, age in ages.items() if name not in late]
    line = f"{len(fresh)} of {len(ages)} fresh" + (
        f", the slowest reported {lasting(max(fresh))} ago" if fresh else ""
    )
    worst = sorted(late, key=lambda name: (-late[name], name))
    phrases = [f"{name} for {lasting(late[name])}" for name in worst]
    return line + (f"; silent: {some(phrases)}" if phrases else "")


def _ages(ages: Mapping[str, float], late: Any) -> dict[str, Any]:
    return {
        "known": len(ages),
        "slowestSeconds": round(max(ages.values()), 1) if ages else None,
        "silent": sorted(late),
    }


def _revisions(proxies: Mapping[str, Lease]) -> dict[str, int]:
    """Returns the version that each proxy reports as applied, by node."""
    texts = {
        name: (lease.metadata.annotations or {}).get(ANNOTATION_REVISION, "")
        for name, lease in sorted(proxies.items())
    }
    return {name: int(text) for name, text in texts.items() if text.isascii() and text.isdecimal()}


def _observed(proxies: Mapping[str, Lease]) -> dict[str, str]:
    """Returns the program whose rules an observer reports, by node."""
    reports = {name: report_of_lease(lease).report for name, lease in sorted(proxies.items())}
    return {name: report.observed for name, report in reports.items() if report and report.observed}


def _by_program(observed: Mapping[str, str]) -> str:
    """Returns ``kube-proxy nftables on 2 Nodes, kube-proxy iptables-nft on 1 Node``."""
    counts = Counter(observed.values())
    return ", ".join(f"{program} on {count(counts[program], 'Node')}" for program in sorted(counts))


def _consumers(facts: StatusFacts, metrics: Mapping[str, list[ScrapedSample]]) -> Part:
    watches = total(metrics, "apiserver_registered_watchers")
    of_slices = [
        sample
        for sample in metrics.get("apiserver_longrunning_requests", ())
        if sample.labels.get("verb") == "WATCH"
        and sample.labels.get("resource") == "endpointslices"
    ]
    if facts.metrics.why or (watches is None and not of_slices):
        return _unread_part("consumers", facts.metrics.why or "no watches in the server's metrics")
    slow = total(metrics, "sliceplane_hub_overflowed_watches_total")
    clients = int(sum(sample.value for sample in of_slices))
    phrases = [f"{count(int(watches), 'watch')} open"] if watches is not None else []
    phrases.append(f"{count(clients, 'client', 'watches')} EndpointSlices")
    if slow:
        phrases.append(f"{count(int(slow), 'watch')} ended as too slow since the server's start")
    figures = {
        "watches": None if watches is None else int(watches),
        "endpointSliceWatches": clients,
        "tooSlow": None if slow is None else int(slow),
    }
    return Part("consumers", "well", (", ".join(phrases),), figures)


def _unread_part(name: str, why: str) -> Part:
    return Part(name, "unknown", (), {}, (f"{name} ({why})",))


def _leases(facts: StatusFacts, namespace: str) -> Iterator[Lease]:
    leases = facts.leases[namespace]
    if not isinstance(leases, str):
        yield from leases


def _age(lease: Lease, now: float) -> float:
    age = since(lease.spec.renew_time or lease.metadata.creation_timestamp, now)
    # A Lease without a readable time is just late.
    return LATE_S + 1 if age is None else max(0.0, age)


def _is_renewed(lease: Lease, now: float) -> bool:
    return bool(lease.spec.holder_identity) and _age(lease, now) <= (
        lease.spec.lease_duration_seconds or LATE_S
    )


def _is_ready(node: Node) -> bool | None:
    """Returns the readiness; ``None``: unknown, as of a Node without a kubelet."""
    ready = node.ready_condition
    return None if ready is None else ready.status == "True"
