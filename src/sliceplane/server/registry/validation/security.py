"""Rules of what a Pod and its containers may do on their node: security contexts, profiles,
sysctls, Windows.

The messages and the order of complaints are those of Kubernetes
(pkg/apis/core/validation/validation.go). Members of ``spec`` that Kubernetes keeps in the security
context inside (``hostNetwork``, ``hostUsers``) are read where clients write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sliceplane.api.errors import (
    FieldErrors,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
    too_long,
    until_error_limit,
)
from sliceplane.api.meta import Document
from sliceplane.kit.names import check_dns_subdomain
from sliceplane.server.registry.metadata import in_go
from sliceplane.server.registry.validation.rules import Field, Rules, among, each, of_form, way_down

ID_MAX: Final = 2**31 - 1
#: in the order in which upstream visits them
CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")
_PROFILES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_PROFILE_BYTES_MAX: Final = 4095
_SYSCTL_BYTES_MAX: Final = 253
_SEGMENT: Final = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL: Final = re.compile(rf"({_SEGMENT}[\./])*{_SEGMENT}")
_SYSCTL_DETAIL: Final = (
    f"must have at most {_SYSCTL_BYTES_MAX} characters and match regex "
    f"^({_SEGMENT}[\\./])*{_SEGMENT}$"
)
_IPC_SYSCTLS: Final = (
    *(
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
    ),
    *("kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg"),
)
_NOT_ON_LINUX: Final = "windows options cannot be set for a linux pod"
_NOT_ON_WINDOWS: Final = "cannot be set for a windows pod"
_CREDENTIALS_KIB_MAX: Final = 64
#: members of a Pod's security context and of its spec that Windows does not have, in upstream's
#: order
_LINUX_OF_PODS: Final = (
    *(
        "securityContext.appArmorProfile",
        "securityContext.seLinuxOptions",
        "hostUsers",
        "hostPID",
        "hostIPC",
    ),
    *(
        "securityContext.seccompProfile",
        "securityContext.fsGroup",
        "securityContext.fsGroupChangePolicy",
    ),
    *(
        "securityContext.sysctls",
        "shareProcessNamespace",
        "securityContext.runAsUser",
        "securityContext.runAsGroup",
    ),
    *("securityContext.supplementalGroups", "securityContext.supplementalGroupsPolicy"),
    "securityContext.seLinuxChangePolicy",
)
#: false is nothing
_PLAIN_FLAGS: Final = ("hostPID", "hostIPC")
_LINUX_OF_CONTAINERS: Final = (
    *(
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
    ),
    *("allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup"),
)


def containers_of(path: str, spec: Document) -> Iterator[tuple[str, Document]]:
    """All containers with their paths."""
    for member in CONTAINERS:
        for index, container in enumerate(spec.get(member, ())):
            yield f"{path}.{member}[{index}]", container


def id_field(member: str) -> Field:
    return Field(member, minimum=0, maximum=ID_MAX)


def check_seccomp(path: str, profile: Document) -> FieldErrors:
    errors = _profile_type(path, profile, "seccompProfile")
    local = profile.get("localhostProfile")
    if profile.get("type") == "Localhost":
        if local is None:
            return [
                *errors,
                required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"),
            ]
        return errors + of_form(f"{path}.localhostProfile", local, way_down)
    if local is not None:
        rendered = in_go(profile, "type", "localhostProfile", type="")
        detail = "can only be set when seccomp type is Localhost"
        errors.append(invalid_value(f"{path}.localhostProfile", rendered, detail))
    return errors


def check_app_armor(path: str, profile: Document) -> FieldErrors:
    kind = profile.get("type", "")
    local: str | None = profile.get("localhostProfile")
    where = f"{path}.localhostProfile"
    if kind != "Localhost":
        errors = _profile_type(path, profile, "appArmorProfile")
        if not errors and local is not None:
            errors.append(
                invalid_value(where, local, "can only be set when AppArmor type is Localhost")
            )
        return errors
    if local and local.strip() != local:
        errors = [invalid_value(where, local, "must not be padded with whitespace")]
    else:
        errors = [] if local else [required(where, "must be set when AppArmor type is Localhost")]
    return (
        [*errors, too_long(where, _PROFILE_BYTES_MAX)]
        if len((local or "").encode()) > _PROFILE_BYTES_MAX
        else errors
    )


def _profile_type(path: str, profile: Document, member: str) -> FieldErrors:
    kind = profile.get("type", "")
    if not kind:
        return [required(f"{path}.type", f"type is required when {member} is set")]
    return among(f"{path}.type", kind, _PROFILES)


def _spec_problems(credentials: str) -> list[str]:
    if not credentials:
        return ["gmsaCredentialSpec cannot be an empty string"]
    if len(credentials.encode()) <= _CREDENTIALS_KIB_MAX * 1024:
        return []
    return [f"gmsaCredentialSpec size must be under {_CREDENTIALS_KIB_MAX} KiB"]


check_windows: Final = Rules(
    Field("gmsaCredentialSpecName", form=check_dns_subdomain, empty=True),
    Field("gmsaCredentialSpec", form=_spec_problems, empty=True),
    Field(
        "runAsUserName",
        form=lambda user: [f"runAsUserName{why}" for why in _user_problems(user)],
        empty=True,
    ),
)


def _user_problems(text: str) -> list[str]:
    if not text:
        return [" cannot be an empty string"]
    if re.search(r"[\x00-\x1f\x7f]", text):
        return [" cannot contain control characters"]
    if text.count("\\") > 1:
        return [" cannot contain more than one backslash"]
    domain, backslash, user = text.rpartition("\\")
    faults = (
        (
            len(domain.encode()) >= _DOMAIN_BYTES,
            f"'s Domain length must be under {_DOMAIN_BYTES} characters",
        ),
        (
            bool(backslash) and not (_NETBIOS.fullmatch(domain) or _DOMAIN.fullmatch(domain)),
            "'s Domain doesn't match the NetBios nor the DNS format",
        ),
        (not user, "'s User cannot be empty"),
        (
            len(user.encode()) > _USER_BYTES_MAX,
            f"'s User length must not be longer than {_USER_BYTES_MAX} characters",
        ),
        (bool(re.fullmatch("[. ]+", user)), "'s User cannot contain only periods or spaces"),
        (
            bool(re.search(r'["/\\:;|=,+*?<>@\[\]]', user)),
            "'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
        ),
    )
    return [why for is_bad, why in faults if is_bad]


_DOMAIN_BYTES: Final = 256
_USER_BYTES_MAX: Final = 104
_NETBIOS: Final = re.compile(r'[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}')
_DOMAIN: Final = re.compile(
    r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*"
)


def check_security(path: str, context: Document, *, host_users: bool) -> FieldErrors:
    """The security context of a container."""
    errors = _FIRST_OF_CONTAINER(path, context)
    mount = context.get("procMount")
    if mount == "Unmasked" and host_users:
        errors.append(
            invalid_value(f"{path}.procMount", mount, "`hostUsers` must be false to use `Unmasked`")
        )
    return errors + _LAST_OF_CONTAINER(path, context)


def _escalation(path: str, context: Document) -> FieldErrors:
    if context.get("allowPrivilegeEscalation") is not False:
        return []
    # As upstream does for each mention of a capability; once is enough.
    faults = {
        "`privileged` to true": context.get("privileged"),
        "`capabilities.Add` CAP_SYS_ADMIN": "CAP_SYS_ADMIN"
        in context.get("capabilities", {}).get("add", ()),
    }
    detail = "cannot set `allowPrivilegeEscalation` to false and"
    return [
        invalid_value(path, _render_context(context), f"{detail} {what}")
        for what, is_set in faults.items()
        if is_set
    ]


_FIRST_OF_CONTAINER: Final = Rules(
    id_field("runAsUser"),
    id_field("runAsGroup"),
    Field("procMount", choices=("Default", "Unmasked")),
)
_LAST_OF_CONTAINER: Final = Rules(
    Field("seccompProfile", rows=check_seccomp),
    _escalation,
    Field("windowsOptions", rows=check_windows),
    Field("appArmorProfile", rows=check_app_armor),
)
#: members of Go's structs in their order, and what an empty one is; by the member that holds the
#: struct
_GO: Final[dict[str, dict[str, Any]]] = {
    "": dict.fromkeys(
        (
            *(
                "capabilities",
                "privileged",
                "seLinuxOptions",
                "windowsOptions",
                "runAsUser",
                "runAsGroup",
            ),
            *("runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "procMount"),
            *("seccompProfile", "appArmorProfile"),
        )
    ),
    "capabilities": dict.fromkeys(("add", "drop")),
    "seLinuxOptions": dict.fromkeys(("user", "role", "type", "level"), ""),
    "windowsOptions": dict.fromkeys(
        ("gmsaCredentialSpecName", "gmsaCredentialSpec", "runAsUserName", "hostProcess")
    ),
    "seccompProfile": {"type": "", "localhostProfile": None},
    "appArmorProfile": {"type": "", "localhostProfile": None},
}


def _render_context(context: Document, member: str = "") -> Document:
    rendered: Document = {}
    for name, empty in _GO[member].items():
        value = context.get(name, empty)
        go_name = (
            "GMSA" + name[4:]
            if name.startswith("gmsa")
            else "SELinuxOptions"
            if name == "seLinuxOptions"
            else ""
        )
        rendered[go_name or name[0].upper() + name[1:]] = (
            _render_context(value, name) if type(value) is dict else value
        )
    return rendered


def check_pod_security(path: str, spec: Document) -> FieldErrors:
    """The security context of a Pod; *path* is the spec's."""
    context: Document = spec.get("securityContext", {})
    where = f"{path}.securityContext"
    errors = _IDS_OF_POD(where, context)
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid_value(f"{where}.shareProcessNamespace", True, detail))
    errors += _sysctls(f"{where}.sysctls", context.get("sysctls", []), spec)
    return errors + _POLICIES_OF_POD(where, context)


def _group(path: str, group: int) -> FieldErrors:
    return (
        []
        if 0 <= group <= ID_MAX
        else [invalid_value(path, group, f"must be between 0 and {ID_MAX}, inclusive")]
    )


_IDS_OF_POD: Final = Rules(
    id_field("fsGroup"),
    id_field("runAsUser"),
    id_field("runAsGroup"),
    Field("supplementalGroups", rows=_group),
)
_POLICIES_OF_POD: Final = Rules(
    Field("fsGroupChangePolicy", choices=("Always", "OnRootMismatch")),
    Field("seccompProfile", rows=check_seccomp),
    Field("windowsOptions", rows=check_windows),
    Field("appArmorProfile", rows=check_app_armor),
    Field("supplementalGroupsPolicy", choices=("Merge", "Strict")),
    # The gate SELinuxMount is off, as upstream's default is.
    Field("seLinuxChangePolicy", choices=("Recursive",)),
)


def _sysctls(path: str, sysctls: list[Document], spec: Document) -> FieldErrors:
    seen: set[str] = set()

    def sysctl_errors(path: str, sysctl: Document) -> FieldErrors:
        where = f"{path}.name"
        name = sysctl.get("name", "")
        errors: FieldErrors = []
        if not name:
            errors.append(required(where))
        elif len(name.encode()) > _SYSCTL_BYTES_MAX or not _SYSCTL.fullmatch(name):
            errors.append(invalid_value(where, name, _SYSCTL_DETAIL))
        elif name in seen:
            errors.append(duplicate(where, name))
        seen.add(name)
        space = _namespace_of(name)
        if space and spec.get(space):
            errors.append(
                invalid_value(where, name, f"may not be specified when '{space}' is true")
            )
        return errors

    return each(path, sysctls, sysctl_errors)


def _namespace_of(sysctl: str) -> str:
    """The member of a spec that shares the kernel's namespace of *sysctl* with the node."""
    first = re.search(r"[./]", sysctl)
    if first is not None and first[0] == "/":
        sysctl = sysctl.translate({ord("."): "/", ord("/"): "."})
    sysctl = sysctl.partition("*")[0]
    if sysctl in _IPC_SYSCTLS or sysctl.startswith("fs.mqueue."):
        return "hostIPC"
    return "hostNetwork" if sysctl.startswith("net.") else ""


def check_host_process(path: str, spec: Document) -> FieldErrors:
    """HostProcess containers of Windows: all of them are, or none."""
    of_pod = spec.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
    errors: FieldErrors = []
    are_ones: list[bool] = []
    for where, container in until_error_limit(errors, containers_of(path, spec)):
        own = container.get("securityContext", {}).get("windowsOptions", {}).get("hostProcess")
        if of_pod is not None and own is not None and of_pod != own:
            detail = (
                "pod hostProcess value must be identical if both are specified, was "
                f"{str(of_pod).lower()}"
            )
            errors.append(
                invalid_value(f"{where}.securityContext.windowsOptions.hostProcess", own, detail)
            )
        are_ones.append(bool(of_pod if own is None else own))
    if not any(are_ones):
        return errors
    if not all(are_ones):
        detail = (
            "If pod contains any hostProcess containers then all containers must be HostProcess "
            "containers"
        )
        errors.append(invalid_value(path, "", detail))
    if not spec.get("hostNetwork"):
        detail = "hostNetwork must be true if pod contains any hostProcess containers"
        errors.append(invalid_value(f"{path}.hostNetwork", False, detail))
    return errors


def check_host_users(path: str, spec: Document) -> FieldErrors:
    """User namespaces (KEP-127)."""
    if spec.get("hostUsers", True):
        return []
    detail = "when `hostUsers` is false"
    # As upstream: some are spelled as Go does.
    names = (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
    errors = [
        forbidden_field(f"{path}.{go_name}", detail)
        for member, go_name in names
        if spec.get(member)
    ]
    for where, container in until_error_limit(errors, containers_of(path, spec)):
        if container.get("volumeDevices"):
            errors.append(forbidden_field(f"{where}.volumeDevices", detail))
    return errors


def check_system(path: str, spec: Document) -> FieldErrors:
    """``os``, and what its system does not have."""
    if "os" not in spec:
        return []
    name = spec["os"].get("name", "")
    if name not in ("linux", "windows"):
        return (
            among(f"{path}.os", name, ("linux", "windows"))
            if name
            else [required(f"{path}.os.name")]
        )
    if name == "linux":
        return _set_in(
            path, spec, ("securityContext.windowsOptions",), ("windowsOptions",), _NOT_ON_LINUX
        )
    return _set_in(path, spec, _LINUX_OF_PODS, _LINUX_OF_CONTAINERS, _NOT_ON_WINDOWS)


def _set_in(
    path: str, spec: Document, of_pod: tuple[str, ...], of_containers: tuple[str, ...], detail: str
) -> FieldErrors:
    context = {
        f"securityContext.{member}": value
        for member, value in spec.get("securityContext", {}).items()
    }
    set_members = {
        **context,
        **{member: value for member, value in spec.items() if value or member not in _PLAIN_FLAGS},
    }
    errors = [
        forbidden_field(f"{path}.{member}", detail) for member in of_pod if member in set_members
    ]
    for where, container in until_error_limit(errors, containers_of(path, spec)):
        own = container.get("securityContext", {})
        errors += [
            forbidden_field(f"{where}.securityContext.{name}", detail)
            for name in of_containers
            if name in own
        ]
    return errors
