"""Pod, and the pod template inside workloads."""

from __future__ import annotations

from sliceplane.api.meta import Document

_CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_FILE_MODE = 0o644
_TOKEN_EXPIRATION_S = 3600


def default_pod(document: Document) -> None:
    default_pod_spec(document.setdefault("spec", {}))
    status = document.get("status", {})
    _agree(status, "podIP", "podIPs")
    _agree(status, "hostIP", "hostIPs")


def default_pod_spec(spec: Document) -> None:
    spec["restartPolicy"] = spec.get("restartPolicy") or "Always"
    spec["dnsPolicy"] = spec.get("dnsPolicy") or "ClusterFirst"
    spec["schedulerName"] = spec.get("schedulerName") or "default-scheduler"
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    _agree_on_account(spec)
    for member in _CONTAINER_LISTS:
        for container in spec.get(member, ()):
            _default_container(container, host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes", ()):
        _default_volume(volume)


def _agree(status: Document, single: str, plural: str) -> None:
    """``podIP`` is ``podIPs[0].ip``; a writer of one of them wrote both."""
    first, every = status.get(single), status.get(plural)
    if first and (not every or every[0].get("ip") != first):
        status[plural] = [{"ip": first}]
    elif every and not first and every[0].get("ip"):
        status[single] = every[0]["ip"]


def _agree_on_account(spec: Document) -> None:
    """``serviceAccount`` is the old name of ``serviceAccountName``; both are shown."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if name:
        spec["serviceAccountName"] = spec["serviceAccount"] = name


def _default_container(container: Document, *, host_network: bool) -> None:
    container["imagePullPolicy"] = container.get("imagePullPolicy") or _pull_policy(container.get("image", ""))
    container["terminationMessagePath"] = container.get("terminationMessagePath") or "/dev/termination-log"
    container["terminationMessagePolicy"] = container.get("terminationMessagePolicy") or "File"
    resources = container.setdefault("resources", {})
    if resources.get("limits"):
        # A limit without a request asks for as much as it allows.
        resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
    for port in container.get("ports", ()):
        port["protocol"] = port.get("protocol") or "TCP"
        if host_network and not port.get("hostPort"):
            port["hostPort"] = port.get("containerPort", 0)
    for variable in container.get("env", ()):
        reference = variable.get("valueFrom", {}).get("fieldRef")
        if reference is not None:
            reference["apiVersion"] = reference.get("apiVersion") or "v1"
    for member in _PROBES:
        if member in container:
            _default_probe(container[member])
    for hook in container.get("lifecycle", {}).values():
        if type(hook) is dict:
            _default_http(hook)


def _pull_policy(image: str) -> str:
    """``Always`` for ``latest`` and for no tag at all, unless a digest pins the image."""
    if "@" in image:
        return "IfNotPresent"
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: Document) -> None:
    for member, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe[member] = probe.get(member) or value
    _default_http(probe)
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http(handler: Document) -> None:
    request = handler.get("httpGet")
    if request is not None:
        request["path"] = request.get("path") or "/"
        request["scheme"] = request.get("scheme") or "HTTP"


def _default_volume(volume: Document) -> None:
    if set(volume) <= {"name"}:
        volume["emptyDir"] = {}
    for member in ("configMap", "secret", "downwardAPI", "projected"):
        if member in volume:
            volume[member].setdefault("defaultMode", _FILE_MODE)
    for source in volume.get("projected", {}).get("sources", ()):
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", _TOKEN_EXPIRATION_S)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
