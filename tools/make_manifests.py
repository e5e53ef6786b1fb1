"""Write ``deploy/manifests/*.yaml`` from the chart, for those who do not use helm.

    PYTHONPATH=src:. python tools/make_manifests.py

The chart is the source; ``tests/deploy`` checks that these files are what it renders now.
"""

from __future__ import annotations

import re

from tests.deploy.helm import MANIFESTS, rendered

_NOT_HELM = re.compile(
    r"^ *(helm\.sh/chart: .*|app\.kubernetes\.io/managed-by: Helm|# Source: .*)\n", re.MULTILINE
)
#: what helm assumes of no server by itself
POLICY_KIND = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
#: file -> how it begins, and the values of each rendering in it
FILES: dict[str, tuple[str, *tuple[tuple[str, ...], ...]]] = {
    "controllers.yaml": (
        "The controllers, two replicas.  The cluster's own must be off: docs/hand-over.md.",
        ("--set=controllers.mode=work",),
    ),
    "controllers-shadow.yaml": (
        (
            "The controllers as a shadow: they write nothing and report where they would differ "
            "from "
            "what is there."
        ),
        ("--set=controllers.mode=shadow",),
    ),
    "controllers-adopted.yaml": (
        (
            "The controllers of adopted Services, beside the cluster's own.  Before these are "
            "deleted: sliceplane release --all"
        ),
        ("--set=controllers.adoptedOnly=true", "--set=controllers.releaseOnUninstall=false"),
    ),
    "proxy.yaml": (
        (
            "The node proxy.  kube-proxy must be off.  Replace API-SERVER by the address where "
            "nodes "
            "reach the API server."
        ),
        (
            "--set=controllers.enabled=false",
            "--set=proxy.enabled=true",
            "--set=proxy.apiServer.host=API-SERVER",
        ),
    ),
    "observer.yaml": (
        "The observer of nodes that kube-proxy serves; it changes no rule.",
        ("--set=controllers.enabled=false", "--set=observer.enabled=true"),
    ),
    "dns.yaml": (
        "The name server, two replicas, beside the cluster's own.",
        ("--set=controllers.enabled=false", "--set=dns.enabled=true"),
    ),
    "xds.yaml": (
        (
            "The xDS server, two replicas.  Its certificate is in the Secret sliceplane-xds: "
            "docs/deploy.md."
        ),
        ("--set=controllers.enabled=false", "--set=xds.enabled=true"),
    ),
    "relay.yaml": (
        (
            "A relay, two replicas.  Its certificate is in the Secret sliceplane-relay: "
            "docs/deploy.md."
        ),
        ("--set=controllers.enabled=false", "--set=relay.enabled=true"),
    ),
    "reader.yaml": (
        "The rights that the commands which only read need, as a ClusterRole to bind.",
        ("--set=controllers.enabled=false", "--set=reader.enabled=true"),
    ),
    "lease-policy.yaml": (
        (
            "For Kubernetes from 1.30 on: a Pod of the other manifests writes the Lease that has "
            "its "
            "name, and no other."
        ),
        (
            f"--api-versions={POLICY_KIND}",
            "--show-only=templates/lease-policy.yaml",
            "--set=dns.enabled=true",
            "--set=xds.enabled=true",
            "--set=controllers.mode=work",
            "--set=proxy.enabled=true",
            "--set=proxy.apiServer.host=API-SERVER",
        ),
        (
            f"--api-versions={POLICY_KIND}",
            "--show-only=templates/lease-policy.yaml",
            "--set=controllers.enabled=false",
            "--set=observer.enabled=true",
        ),
    ),
}


def manifest(name: str) -> str:
    told, *renderings = FILES[name]
    whole = "".join(rendered(*values) for values in renderings)
    text = _NOT_HELM.sub("", whole).replace("\n\n---\n", "\n---\n")
    return f"# {told}\n# Made from deploy/helm/sliceplane by tools/make_manifests.py.\n{text}"


def main() -> None:
    MANIFESTS.mkdir(exist_ok=True)
    for name in FILES:
        (MANIFESTS / name).write_text(manifest(name))


if __name__ == "__main__":
    main()
