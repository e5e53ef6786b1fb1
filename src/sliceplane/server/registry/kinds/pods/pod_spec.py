"""Specs of Pods and of the templates of workloads: defaults and rules."""

from __future__ import annotations

from typing import Final

from sliceplane.api.errors import (
    FieldErrors,
    forbidden_field,
    invalid_value,
    missing_value,
    required,
    too_long,
    until_error_limit,
)
from sliceplane.api.images import pull_policy
from sliceplane.api.meta import Document
from sliceplane.api.service_rules import PROTOCOL_DEFAULT
from sliceplane.kit.names import (
    check_dns_label,
    check_dns_search,
    check_dns_subdomain,
    check_qualified_name,
)
from sliceplane.server.registry.metadata import validate_labels, validate_maps
from sliceplane.server.registry.validation.addresses import ip_problems
from sliceplane.server.registry.validation.annotations import (
    MIRROR,
    check_agreement,
    check_pod_annotations,
)
from sliceplane.server.registry.validation.containers import (
    PodContext,
    check_containers,
    check_ephemeral_containers,
    check_image,
    check_init_containers,
    check_ports_of_node,
)
from sliceplane.server.registry.validation.resources import (
    AMOUNTS_MAX,
    NO_CLAIMS,
    check_claims_of_pod,
    check_pod_resources,
    check_resources,
    claim_names,
    count_amounts,
    is_of_pods,
    sum_of_containers,
)
from sliceplane.server.registry.validation.rules import (
    Defaults,
    Field,
    Rules,
    each,
    each_of_form,
    fill,
    of_form,
)
from sliceplane.server.registry.validation.scheduling import (
    check_affinity,
    check_gates,
    check_tolerations,
    check_topology_spread,
)
from sliceplane.server.registry.validation.security import (
    CONTAINERS,
    ID_MAX,
    check_host_process,
    check_host_users,
    check_pod_security,
    check_system,
    containers_of,
)
from sliceplane.server.registry.validation.volumes import check_volumes

RESTART_POLICIES = ("Always", "OnFailure", "Never")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCH_BYTES_MAX: Final = 2048
_HOST_NAME_BYTES_MAX: Final = 64


def default_pod(spec: Document) -> None:
    """Fills the defaults of a Pod that a template does not get."""
    for member in CONTAINERS[:2]:
        for container in spec.get(member, ()):
            resources = container.get("resources", {})
            if resources.get("limits"):
                # A limit without a request asks for as much as it allows.
                resources["requests"] = {**resources["limits"], **resources.get("requests", {})}
            for port in container.get("ports", ()) if spec.get("hostNetwork") else ():
                port["hostPort"] = port.get("hostPort") or port.get("containerPort", 0)
    whole: Document = spec.get("resources", {})
    if whole.get("limits") or whole.get("requests"):
        _default_whole(whole, spec)
    spec.setdefault("enableServiceLinks", True)
    default_pod_spec(spec)
    # As upstream: of a Pod, not of a template.
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1


def _default_whole(whole: Document, spec: Document) -> None:
    """Amounts of the Pod as a whole, from those of its containers (KEP-2837)."""
    limits: Document = dict(whole.get("limits", {}))
    requests: Document = dict(whole.get("requests", {}))
    for name, limit in sum_of_containers(spec, "limits").items():
        if name.startswith("hugepages-") and name not in requests:
            limits.setdefault(name, limit)
    if limits:
        for name, request in sum_of_containers(spec, "requests").items():
            if name in ("cpu", "memory"):
                requests.setdefault(name, request)
        for name, limit in limits.items():
            if is_of_pods(name):
                requests.setdefault(name, limit)
    whole |= {
        member: amounts
        for member, amounts in (("limits", limits), ("requests", requests))
        if amounts
    }


def default_pod_spec(spec: Document) -> None:
    _DEFAULTS(spec)
    # ``serviceAccount`` is the old name of ``serviceAccountName``; both are shown.
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for member in CONTAINERS:
        for container in spec.get(member, ()):
            container["imagePullPolicy"] = container.get("imagePullPolicy") or pull_policy(
                container.get("image", "")
            )
    for volume in spec.get("volumes", ()):
        if volume.keys() <= {"name"}:
            volume["emptyDir"] = {}
        if "image" in volume:
            fill(volume["image"], {"pullPolicy": pull_policy(volume["image"].get("reference", ""))})


def default_claim(claim: Document) -> None:
    """A PersistentVolumeClaim or a template of one."""
    fill(claim, _CLAIM)


_CLAIM: Final = {"+spec": {"volumeMode?": "Filesystem"}}
_HTTP: Final = {"httpGet": {"path": "/", "scheme": "HTTP"}}
_PROBE: Final = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
    **_HTTP,
    "grpc": {"service?": ""},
}
_REFERENCES: Final = {"fieldRef": {"apiVersion": "v1"}, "resourceFieldRef": {"divisor?": "0"}}
_CONTAINER: Final = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
    "ports": [{"protocol": PROTOCOL_DEFAULT}],
    "env": [{"valueFrom": {**_REFERENCES, "fileKeyRef": {"optional?": False}}}],
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _PROBE),
    "lifecycle": {"postStart": _HTTP, "preStop": _HTTP},
}
_DOWNWARD: Final = {"items": [_REFERENCES]}
_MODE: Final = {"defaultMode?": 0o644}
_VOLUME: Final = {
    "hostPath": {"type": ""},
    "configMap": _MODE,
    "secret": _MODE,
    "downwardAPI": {**_MODE, **_DOWNWARD},
    "projected": {
        **_MODE,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds?": 3600}, "downwardAPI": _DOWNWARD}
        ],
    },
    "azureDisk": {
        "cachingMode?": "ReadWrite",
        "fsType?": "ext4",
        "readOnly": False,
        "kind?": "Shared",
    },
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
    "ephemeral": {"volumeClaimTemplate": _CLAIM},
}
_DEFAULTS: Final = Defaults(
    {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds?": 30,
        "securityContext": {},
        **{member: [_CONTAINER] for member in CONTAINERS},
        "volumes": [_VOLUME],
    }
)


def validate_pod_spec(spec: Document, path: str, head: Document | None = None) -> FieldErrors:
    """*head*: the metadata of a Pod; ``None`` for a template, to which some rules do not
    apply yet.
    """
    is_pod = head is not None
    if count_amounts(spec) > AMOUNTS_MAX:
        detail = (
            f"must not have more than {AMOUNTS_MAX} amounts of resources in all containers together"
        )
        return [forbidden_field(f"{path}.containers", detail)]
    volumes, errors = check_volumes(
        f"{path}.volumes", spec.get("volumes", []), (head or {}).get("name") if is_pod else None
    )
    claims: list[Document] = spec.get("resourceClaims", [])
    if claims and head is not None and MIRROR in head.get("annotations", {}):
        errors.append(forbidden_field("[]", "static pods do not support resource claims"))
    else:
        errors += check_claims_of_pod(f"{path}.resourceClaims", claims)
    pod = PodContext(
        grace_s=spec.get("terminationGracePeriodSeconds", 0),
        volumes=volumes,
        claims=claim_names(claims) if claims else NO_CLAIMS,
        host_users=spec.get("hostUsers", True),
        restart_policy=spec.get("restartPolicy", ""),
    )
    containers, init, ephemeral = (
        spec.get(member, []) for member in ("containers", "initContainers", "ephemeralContainers")
    )
    errors += check_containers(f"{path}.containers", containers, pod)
    errors += check_init_containers(f"{path}.initContainers", init, containers, pod)
    errors += check_ephemeral_containers(
        f"{path}.ephemeralContainers", ephemeral, [*containers, *init], pod
    )
    if "resources" in spec:
        errors += check_pod_resources(f"{path}.resources", spec, pod.claims)
    if spec.get("hostNetwork"):
        errors += check_ports_of_node(path, spec, is_pod=is_pod)
    errors += _ROWS(path, spec)
    return errors + (_of_pods(path, spec) if is_pod else [])


def validate_template(template: Document, path: str) -> FieldErrors:
    head: Document = template.get("metadata", {})
    annotations: dict[str, str] = head.get("annotations", {})
    spec: Document = template.get("spec", {})
    errors = validate_maps(head, path)
    errors += check_pod_annotations(f"{path}.annotations", annotations, spec)
    errors += validate_pod_spec(spec, f"{path}.spec")
    errors += check_agreement(f"{path}.spec", annotations, spec)
    if spec.get("ephemeralContainers"):
        detail = "ephemeral containers not allowed in pod template"
        errors.append(forbidden_field(f"{path}.spec.ephemeralContainers", detail))
    return errors


def validate_new_pod(document: Document) -> FieldErrors:
    head: Document = document["metadata"]
    annotations: dict[str, str] = head.get("annotations", {})
    spec: Document = document["spec"]
    errors = check_pod_annotations("metadata.annotations", annotations, spec)
    errors += validate_pod_spec(spec, "spec", head)
    if spec.get("ephemeralContainers"):
        errors.append(forbidden_field("spec.ephemeralContainers", "cannot be set on create"))
    if spec.get("nodeName") and spec.get("schedulingGates"):
        detail = "cannot be set until all schedulingGates have been cleared"
        errors.append(forbidden_field("spec.nodeName", detail))
    return errors + check_agreement("spec", annotations, spec)


def _of_pods(path: str, spec: Document) -> FieldErrors:
    """The rules that templates do not have."""
    errors: FieldErrors = []
    if not spec.get("serviceAccountName"):
        for index, volume in enumerate(spec.get("volumes", ())):
            for at, source in enumerate(volume.get("projected", {}).get("sources", ())):
                if "serviceAccountToken" in source:
                    where = f"{path}.volumes[{index}].projected.sources[{at}].serviceAccountToken"
                    detail = "must not be specified when serviceAccountName is not set"
                    errors.append(forbidden_field(where, detail))
    for member in ("containers", "initContainers"):
        errors += each(f"{path}.{member}", spec.get(member, ()), check_image)
    return errors


def _dns(path: str, spec: Document) -> FieldErrors:
    path = f"{path}.dnsConfig"
    config: Document | None = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if config is None:
            return [required(path, "must provide `dnsConfig` when `dnsPolicy` is None")]
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.nameservers", detail)]
    if config is None:
        return []
    return _DNS_CONFIG(path, config)


def _nameservers(path: str, servers: list[str]) -> FieldErrors:
    errors: FieldErrors = []
    if len(servers) > _NAMESERVERS_MAX:
        errors.append(
            invalid_value(path, servers, f"must not have more than {_NAMESERVERS_MAX} nameservers")
        )
    return errors + each_of_form(path, servers, ip_problems)


def _searches(path: str, searches: list[str]) -> FieldErrors:
    errors: FieldErrors = []
    if len(searches) > _SEARCHES_MAX:
        errors.append(
            invalid_value(path, searches, f"must not have more than {_SEARCHES_MAX} search paths")
        )
    if sum(len(search.encode()) + 1 for search in searches) - 1 > _SEARCH_BYTES_MAX:
        detail = (
            f"must not have more than {_SEARCH_BYTES_MAX} characters (including spaces) in the "
            "search list"
        )
        errors.append(invalid_value(path, searches, detail))
    return errors + each(path, searches, _search)


def _search(path: str, search: str) -> FieldErrors:
    return [] if search == "." else of_form(path, search.removesuffix("."), check_dns_search)


def _option(path: str, option: Document) -> FieldErrors:
    return [] if option.get("name") else [required(path, "must not be empty")]


_DNS_CONFIG: Final = Rules(
    Field("nameservers", whole=_nameservers),
    Field("searches", whole=_searches),
    Field("options", rows=_option),
)


def _host_name(path: str, spec: Document) -> FieldErrors:
    """``hostnameOverride`` (KEP-4762)."""
    name = spec.get("hostnameOverride")
    if name is None:
        return []
    where = f"{path}.hostnameOverride"
    errors = [
        forbidden_field(where, f"may not be specified when {member} is true")
        for member in ("setHostnameAsFQDN", "hostNetwork")
        if spec.get(member)
    ]
    if len(name.encode()) > _HOST_NAME_BYTES_MAX:
        errors.append(too_long(where, _HOST_NAME_BYTES_MAX))
    return errors + of_form(where, name, check_dns_subdomain)


def _overhead(path: str, amounts: Document) -> FieldErrors:
    return check_resources(path, {"limits": amounts}, NO_CLAIMS)


def _files_of_variables(path: str, spec: Document) -> FieldErrors:
    """Volumes that variables are read from (KEP-3721)."""
    errors: FieldErrors = []
    volumes = {volume.get("name", ""): volume for volume in spec.get("volumes", ())}
    for where, container in until_error_limit(errors, containers_of(path, spec)):
        for index, variable in until_error_limit(errors, enumerate(container.get("env", ()))):
            reference = variable.get("valueFrom", {}).get("fileKeyRef")
            if reference is None:
                continue
            name = reference.get("volumeName", "")
            at = f"{where}.env[{index}].valueFrom.fileKeyRef.volumeName"
            if name not in volumes:
                errors.append(missing_value(at, name))
            elif "emptyDir" not in volumes[name]:
                errors.append(invalid_value(at, name, "referenced volume must be of type emptyDir"))
    return errors


_ROWS: Final = Rules(
    Field("restartPolicy", choices=RESTART_POLICIES),
    Field("dnsPolicy", choices=("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
    Field("nodeSelector", rows=validate_labels),
    check_pod_security,
    Field("affinity", rows=check_affinity),
    _dns,
    Field(
        "readinessGates", rows=Rules(Field("conditionType", form=check_qualified_name, always=True))
    ),
    Field("schedulingGates", whole=check_gates),
    Field("topologySpreadConstraints", whole=check_topology_spread),
    check_host_process,
    check_host_users,
    _host_name,
    Field("serviceAccountName", form=check_dns_subdomain),
    Field("nodeName", form=check_dns_subdomain),
    Field("activeDeadlineSeconds", minimum=1, maximum=ID_MAX),
    Field("hostname", form=check_dns_label),
    Field("subdomain", form=check_dns_label),
    Field("tolerations", whole=check_tolerations),
    Field(
        "hostAliases",
        rows=Rules(
            Field("ip", form=ip_problems, always=True),
            Field("hostnames", form=check_dns_subdomain),
        ),
    ),
    Field("priorityClassName", form=check_dns_subdomain),
    Field("runtimeClassName", form=check_dns_subdomain, empty=True),
    Field("preemptionPolicy", choices=PREEMPTION_POLICIES),
    Field("overhead", rows=_overhead),
    check_system,
    _files_of_variables,
)
