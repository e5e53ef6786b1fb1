"""What somebody takes out of the kernel's rules for Services by hand: an element, a rule, the
content of a map or a chain, or all of it. The seed of the world chooses.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.kernel.oracle.field import Field
    from tests.kernel.oracle.worlds import WorldPlan


async def damaged(place: Field, world: WorldPlan) -> str:
    """Does it; returns the command."""
    choice = random.Random(f"damage {world.seed}")
    if world.damage == "leftover":
        command = await _leftover(place, world)
    elif "iptables" in place.kind:
        command = await _of_iptables(place, world.damage, choice)
    else:
        command = await _of_nftables(place, world.damage, choice)
    if command:
        await place.inside("listed", *command)
    return " ".join(command) or "nothing to take"


async def _leftover(place: Field, world: WorldPlan) -> tuple[str, ...]:
    """Rules of a kube-proxy that ran here before, and led to Pods that are gone."""
    path = f"/api/v1/namespaces/{world.namespace}/services"
    addresses = [
        item["spec"]["clusterIP"] for item in (await place.inside("ask", "GET", path))["items"]
    ]
    rules = [
        f"-A KUBE-SERVICES -d {address}/32 -p tcp -m tcp --dport 80 -j KUBE-SEP-OLD"
        for address in addresses
        if address != "None"
    ]
    text = "\\n".join(
        (
            *("*nat", ":KUBE-SERVICES - [0:0]", ":KUBE-SEP-OLD - [0:0]"),
            *("-A PREROUTING -j KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", *rules),
            "-A KUBE-SEP-OLD -p tcp -m tcp -j DNAT --to-destination 10.244.1.77:8080",
            "COMMIT\\n",
        )
    )
    return ("sh", "-c", f"printf '{text}' | iptables-legacy-restore --noflush")


async def _of_nftables(place: Field, damage: str, choice: random.Random) -> tuple[str, ...]:
    table = "sliceplane" if "ours" in place.kind else "kube-proxy"
    listing = json.loads(
        await place.inside("listed", "nft", "-j", "-a", "list", "table", "ip", table)
    )
    entries: list[dict[str, Any]] = listing["nftables"]
    chains = [entry["chain"]["name"] for entry in entries if "chain" in entry]
    rules = [entry["rule"] for entry in entries if "rule" in entry]
    containers = [
        (kind, entry[kind]) for entry in entries for kind in ("map", "set") if kind in entry
    ]
    filled = [(kind, each) for kind, each in containers if each.get("elem")]
    match damage:
        case "table":
            return ("nft", "delete", "table", "ip", table)
        case "chain":
            return ("nft", "flush", "chain", "ip", table, choice.choice(chains))
        case "container" if filled:
            kind, each = choice.choice(filled)
            return ("nft", "flush", kind, "ip", table, each["name"])
        case "element" if filled:
            kind, each = choice.choice(filled)
            key = _key(choice.choice(each["elem"]))
            return ("nft", "delete", "element", "ip", table, each["name"], "{", key, "}")
        case "rule" if rules:
            rule = choice.choice(rules)
            handle = str(rule["handle"])
            return ("nft", "delete", "rule", "ip", table, rule["chain"], "handle", handle)
    return ()


def _key(element: Any) -> str:
    """As ``nft`` wants it: of a map's element without its value."""
    if isinstance(element, list):
        element = element[0]
    if isinstance(element, dict) and "elem" in element:
        return _key(element["elem"]["val"])
    if isinstance(element, dict) and "concat" in element:
        return " . ".join(map(str, element["concat"]))
    if isinstance(element, dict) and "prefix" in element:
        return f"{element['prefix']['addr']}/{element['prefix']['len']}"
    return str(element)


async def _of_iptables(place: Field, damage: str, choice: random.Random) -> tuple[str, ...]:
    table, chains, rules = "", [], []
    for line in str(await place.inside("listed", "iptables-save")).splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif line.startswith(":KUBE-"):
            chains.append((table, line[1:].split()[0]))
        elif line.startswith("-A ") and "KUBE-" in line:
            rules.append((table, line))
    if damage == "table":
        return ("sh", "-c", "iptables -t nat -F; iptables -t nat -X; iptables -t filter -F")
    if damage in ("chain", "container") and chains:
        name, chain = choice.choice(chains)
        return ("iptables", "-t", name, "-F", chain)
    if rules:
        name, line = choice.choice(rules)
        return ("sh", "-c", f"iptables -t {name} -D {line[3:]}")
    return ()
