"""Lists of what there is and what there is not say what the code says: each entry has a probe."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sliceplane.api.errors import NOT_SERVED
from sliceplane.api.scheme import BY_PATH, LISTED, SERVED, Pods
from sliceplane.cli.main import COMMANDS
from sliceplane.node.configuration.fields import BACK_ENDS

ROOT: Final = Path(__file__).parent.parent
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
KINDS: Final = frozenset(row.kind for row in BY_PATH.values() if row not in LISTED)


def _kind(*kinds: str) -> Callable[[], bool]:
    return lambda: KINDS.isdisjoint(kinds)


def _of_pods(subresource: str) -> Callable[[], bool]:
    return lambda: subresource not in Pods.subresources


def _mode(mode: str) -> Callable[[], bool]:
    return lambda: mode not in BACK_ENDS


def _is_unpublished() -> bool:
    return "Nothing is published" in (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


#: what users of Kubernetes look for: as the lists name it, and what finds out that it is absent
ABSENCES: Final[dict[str, Callable[[], bool]]] = {
    "Job": _kind("Job"),
    "CronJob": _kind("CronJob"),
    "HorizontalPodAutoscaler": _kind("HorizontalPodAutoscaler"),
    "CustomResourceDefinition": _kind("CustomResourceDefinition"),
    "admission webhooks": _kind("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
    "aggregated APIs": _kind("APIService"),
    "`kubectl logs`": _of_pods("log"),
    "`kubectl exec`": _of_pods("exec"),
    "`kubectl port-forward`": _of_pods("portforward"),
    "ipvs": _mode("ipvs"),
    "Windows as modes that run": _mode("kernelspace"),
    "published images": _is_unpublished,
    "packages": _is_unpublished,
}
#: bold titles of README's features: modules of the package and commands that are the feature
FEATURES: Final[dict[str, tuple[str, ...]]] = {
    "API server": ("server.io.requests.app", "apiserver", "up"),
    "Relays": ("relay.mirror", "relay.io.relay", "relay.io.reader", "relay"),
    "Access": (
        "server.registry.authorization",
        "server.registry.authentication",
        "server.io.audit.log",
    ),
    "Storage": ("server.io.storage.sqlite", "server.io.storage.replicated", "snapshot"),
    "Controllers": ("controllers.endpointslice", "controllers.endpoints", "controllers"),
    "Hints": (
        "slices.hinting.hints",
        "slices.heuristics.shipped",
        "controllers.traffic_distribution",
        "controllers.measured.controller",
        "node.demand",
    ),
    "Node proxy": ("node.nft.table", "node.iptables.table", "proxy", "trace"),
    "Beside kube-proxy": ("node.observing.agreement", "node.io.observing.observer", "observe"),
    "What if": ("lab.whatif.prediction", "what-if", "estimate"),
    "DNS": ("dns.server", "dns"),
    "xDS": ("xds.catalog", "xds"),
    "Endpoints outside": ("consume.agents.registration", "agent"),
    "Answers": (
        "diagnose.explain.chain",
        "check",
        "explain",
        "lint",
        "status",
        "drift",
        "drain",
        "ui",
        "guard",
    ),
    "A recorder": ("diagnose.timeline.replay", "recorder", "timeline"),
    "A conformance kit": ("lab.conformance.steps", "conformance"),
    "A Python client": ("consume.io.client.view",),
    "For existing clusters": (
        "controllers.io.standalone",
        "controllers",
        "adopt",
        "release",
    ),
    "The way out of Endpoints": ("diagnose.audit.judge", "endpoints"),
    "Proof": ("lab.sim.simulation", "simulate"),
}
#: commands that are no feature of the plane
_PLAIN: Final = ("completion", "help", "version")
_LISTED: Final = re.compile(r"^Not there: (?P<list>.*?)\.(?=\s)", re.DOTALL | re.MULTILINE)
_KIND_LIKE: Final = re.compile(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
#: words of the same form in lists of features that are no kinds
_NO_KINDS: Final = frozenset(("CoreDNS",))


def absent(text: str) -> list[str]:
    """The entries of the list of *text* that begins with "Not there:"; remarks in parentheses are
    none.
    """
    listed = _LISTED.search(text)
    assert listed is not None, "there is no such list"
    plain = " ".join(re.sub(r"\([^)]*\)", "", listed["list"]).split())
    return [entry.strip() for entry in re.split(r", and |[,;]| and ", plain) if entry.strip()]


def features() -> str:
    return README.partition("\n## Features\n")[2].partition("\n## ")[0]


def untrue(entries: list[str]) -> list[str]:
    """Returns a sentence for each entry that is there, or unknown, and each absence that is not
    named.
    """
    unknown = [f"{entry}: no probe knows it" for entry in entries if entry not in ABSENCES]
    present = [
        f"{entry} is there" for entry in entries if entry in ABSENCES and not ABSENCES[entry]()
    ]
    unnamed = [
        f"{entry} is not named"
        for entry, is_absent in ABSENCES.items()
        if is_absent() and entry not in entries
    ]
    return [*unknown, *present, *unnamed]


def test_what_is_not_there_is_not_there() -> None:
    assert untrue(absent(README)) == []


def test_a_list_that_is_no_longer_true_is_found() -> None:
    """As README had it beside a command ``xds``."""
    text = (
        "Not there: ipvs and Windows as modes that run, published images and packages, xDS, and "
        "kubelets that run\n"
        "containers. What differs from upstream"
    )
    found = untrue(absent(text))
    assert {"xDS: no probe knows it", "Job is not named"} <= set(found)


def test_the_page_that_a_404_names_lists_what_is_absent() -> None:
    path, _, anchor = NOT_SERVED.partition("#")
    title = "## " + anchor.replace("-", " ").capitalize()
    section = (
        (ROOT / path).read_text(encoding="utf-8").partition(f"\n{title}\n")[2].partition("\n## ")[0]
    )
    kinds = [entry for entry in ABSENCES if re.fullmatch(r"[A-Z]\w+", entry)]
    for name in (
        *kinds,
        "dmission webhooks",
        "ggregated APIs",
        "`kubectl logs`",
        "`exec`",
        "`port-forward`",
    ):
        assert name in section, f"{path}, {title}: {name} is not named"


def test_each_feature_is_a_module_or_a_command() -> None:
    titles = re.findall(r"^\* \*\*\[?(.*?)\]?(?:\([\w/.#-]+\))?[.:]?\*\*", features(), re.MULTILINE)
    assert titles == list(FEATURES)
    for title, names in FEATURES.items():
        missing = [
            name
            for name in names
            if name not in COMMANDS and find_spec(f"sliceplane.{name}") is None
        ]
        assert not missing, f"{title}: there is no {missing}"


def test_each_command_is_a_feature() -> None:
    named = {name for names in FEATURES.values() for name in names}
    text = features()
    for command in set(COMMANDS) - set(_PLAIN):
        assert command in named, f"no feature is {command}"
        assert re.search(rf"`(?:sliceplane )?{command}\b", text), (
            f"README's features do not name {command}"
        )


def test_kinds_that_are_named_are_served_or_said_to_be_absent() -> None:
    text = re.sub(r"^```.*?^```$", "", README, flags=re.DOTALL | re.MULTILINE)
    words = _KIND_LIKE.findall(text)
    singular = {word if word in KINDS else re.sub(r"(?<=Class)es$|s$", "", word) for word in words}
    served = {row.kind for row in SERVED}
    assert singular - served - set(ABSENCES) - _NO_KINDS == set()
