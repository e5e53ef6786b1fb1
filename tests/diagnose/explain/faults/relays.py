"""Relays and what they report of themselves."""

from __future__ import annotations

import json
from typing import Any

from tests.diagnose.explain.edits import Edit, ask, nearly, planted
from tests.diagnose.explain.faults.proxies import add_proxies
from tests.diagnose.explain.world import NOW, World, ago

from sliceplane.consume.drain.relayed import pack_names

SERVER = "https://10.0.0.1:6443"


def relay(name: str, **members: Any) -> dict[str, Any]:
    """A report of a relay that has clients and is ready."""
    silence = {"endpointslices": 21.4, "services": 8.0, "nodes": 3.1}
    report = {"name": name, "process": "3f9a12c0b7d4", "heard": NOW - 8, "up_s": 7200.0}
    return {
        **report,
        "parent": SERVER,
        "release": "0.1.0",
        "silence": silence,
        "watches": 33,
        **members,
    }


def below(name: str, parent: str, **members: Any) -> dict[str, Any]:
    return relay(name, below=parent, parent=f"https://{parent}.example:6444", **members)


def reports(*relays: dict[str, Any], nodes: int = 0) -> Edit:
    """The Lease of the first of *relays*, with reports of all, and of *nodes* Nodes that it
    aggregates.
    """

    def edit(world: World) -> None:
        first = relays[0]
        held = {"all": [1000, "0" * 16]}
        group = {
            "report": {"endpointslices": held, "services": held},
            "heard": first["heard"],
            "packed": pack_names([f"node-{number}" for number in range(nodes)]),
            "has_owner": True,
        }
        aggregated = {"nodes": nodes, "groups": [group] if nodes else []}
        world.add(
            "Lease",
            "kube-node-lease",
            f"sliceplane-relay-{first['name']}",
            meta={
                "annotations": {
                    "sliceplane.dev/nodes": json.dumps(aggregated),
                    "sliceplane.dev/relays": json.dumps(relays),
                }
            },
            labels={"sliceplane.dev/component": "relay"},
            spec={
                "holderIdentity": first["name"],
                "leaseDurationSeconds": 90,
                "renewTime": ago(NOW - first["heard"]),
            },
        )

    return edit


# N16

planted("N16", "a_relay_has_stopped", reports(relay("eu", heard=NOW - 240), below("eu-1", "eu")))
planted(
    "N16",
    "a_relay_has_stopped_with_the_reports_of_its_nodes",
    reports(relay("eu", heard=NOW - 240, nodes=3), nodes=3),
)
planted(
    "N16",
    "the_relay_of_the_node_has_stopped",
    reports(relay("eu", heard=NOW - 240, nodes=3), nodes=3),
    ask("node", "node-1"),
)
planted(
    "N16",
    "a_relay_has_stopped_behind_another_one",
    reports(relay("eu"), below("eu-1", "eu", heard=NOW - 240, is_late=True)),
)
nearly(
    "N16 N17 N18 N19",
    "all_relays_are_ready",
    add_proxies,
    reports(relay("eu"), below("eu-1", "eu", heard=NOW - 40)),
    reports(relay("us")),
)
nearly("N16", "a_report_of_a_relay_is_a_little_late", reports(relay("eu", heard=NOW - 40)))
nearly(  # It moved: what its former parent has of it is old.
    "N16 N18",
    "a_relay_has_moved",
    reports(relay("eu"), below("eu-1", "eu", heard=NOW - 600, is_late=True)),
    reports(relay("us"), below("eu-1", "us")),
)
nearly(
    "N16 N17 N19",
    "a_report_of_a_relay_cannot_be_read",
    reports({"name": "eu", "heard": NOW - 240}),
)
nearly(
    "N16",
    "another_nodes_relay_has_stopped",
    add_proxies,
    reports(relay("eu", heard=NOW - 240)),
    ask("node", "node-1"),
)

# N17


def silent(seconds: float) -> dict[str, Any]:
    return {"endpointslices": seconds, "services": 3.0}


BEHIND = {"silence": silent(240.0), "trouble": "endpointslices: the parent is silent since 240 s"}
planted("N17", "a_relay_is_behind", reports(relay("eu", **BEHIND), below("eu-1", "eu", **BEHIND)))
planted(
    "N17", "a_relay_behind_another_is_behind", reports(relay("eu"), below("eu-1", "eu", **BEHIND))
)
nearly("N17", "two_bookmarks_are_not_over", reports(relay("eu", silence=silent(118.0))))
nearly(
    "N17",
    "what_was_silent_has_stopped",
    reports(relay("eu", heard=NOW - 240), below("eu-1", "eu", **BEHIND)),
)

# N18

TWIN = relay("eu", process="9b04ee21c5aa", heard=NOW - 35, up_s=400.0)
planted("N18", "two_relays_have_one_name", reports(relay("eu"), TWIN))
planted(
    "N18",
    "two_relays_behind_two_others_have_one_name",
    reports(relay("a"), below("eu", "a")),
    reports(relay("b"), {**TWIN, "below": "b"}),
)
nearly("N18", "one_replaces_the_other", reports(relay("eu", up_s=50.0), TWIN))
nearly("N18", "a_relay_has_restarted", reports(relay("eu"), {**TWIN, "heard": NOW - 7190}))

# N19

NO_RIGHT = "nodes: cannot list resource nodes at the cluster scope"
planted("N19", "a_relay_lacks_a_right", reports(relay("eu", trouble=NO_RIGHT)))
planted(
    "N19",
    "relays_are_below_one_that_is_not_ready",
    reports(relay("eu", trouble=NO_RIGHT, watches=3), below("eu-1", "eu")),
)
nearly("N19", "no_client_uses_it", reports(relay("eu", trouble=NO_RIGHT, watches=0)))
nearly("N19", "it_has_just_started", reports(relay("eu", trouble=NO_RIGHT, up_s=20.0)))
