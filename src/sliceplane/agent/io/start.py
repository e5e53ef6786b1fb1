"""Starts an agent from its file and options: fills in names, resolves the Services, and follows the
file.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from sliceplane.agent.agent_file import AgentFile, AgentFileError, ServiceEntry
from sliceplane.agent.io.machine import (
    default_name,
    host_id,
    lock_name,
    own_addresses,
    state_folder,
)
from sliceplane.agent.io.orphan import Custody
from sliceplane.agent.io.program import Agent, AgentOptions, AgentPlan
from sliceplane.agent.io.token import agent_client, granted_name
from sliceplane.agent.tenure import AgentConfig
from sliceplane.api.codec import decode, encode
from sliceplane.api.core import Service
from sliceplane.api.errors import StatusError
from sliceplane.api.meta import Document
from sliceplane.api.requests import Write
from sliceplane.api.scheme import Services
from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.consume.agents.registration import AgentPort, Registration
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.names import check_dns_label
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.connection import Connection

#: seconds between two checks of the file
_FILE_PERIOD_S: Final = 1.0
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_log = get_logger("agent")
Read = Callable[[], AgentFile]


async def serve(
    connection: Connection,
    read: Read,
    options: AgentOptions,
    *,
    on_stop: Callable[[Callable[[], object]], None],
    notify: Callable[[str], None],
    print_line: Callable[[str], None],
) -> int:
    """Runs an agent from start to end; returns the exit code.

    Raises ``AgentFileError``, ``MachineError``, ``ValueError`` with sentences for the user,
    ``StatusError`` and ``Unreachable`` of the first requests, ``OSError`` for a command that cannot
    be started.
    """
    spec = read()
    name = spec.name or await granted_name(connection)
    name = name or default_name(spec.services[0].service if options.path is None else "")
    for problem in check_dns_label(name):  # the name becomes a part of paths, too
        raise ValueError(f"the name {name!r} of the agent {problem}")
    folder = state_folder()
    lock = lock_name(folder, name)
    options = replace(
        options, custody=Custody(folder / f"{name}.child", options.on_orphan, options.stop_s)
    )
    try:
        async with agent_client(connection, name, folder) as client:
            start = secrets.token_hex(4)
            config = AgentConfig(name=name, host=host_id(folder), start=start, terms=options.terms)
            agent: Agent | None = None
            while True:
                registrations = await _registrations(
                    client, connection, spec._replace(name=name), options
                )
                if options.dry_run:
                    print_line(_documents(registrations))
                    return 0
                is_auto = spec.addresses == ("auto",)
                plan = AgentPlan(config, registrations, connection.server, is_auto)
                agent = Agent(
                    client, plan, options, earlier=agent, notify=notify, print_line=print_line
                )
                on_stop(agent.stop)
                watch = asyncio.create_task(_changed(options.path, read, spec, agent.hand_over))
                try:
                    code = await agent.run()
                finally:
                    watch.cancel()
                    await asyncio.gather(watch, return_exceptions=True)
                if not agent.handed_over:
                    return code
                spec = watch.result()
                print_line("the file has changed: its Services are followed anew")
    finally:
        os.close(lock)


async def _changed(
    path: Path | None, read: Read, current: AgentFile, on_change: Callable[[], None]
) -> AgentFile:
    """Waits until the file has other, valid content; calls *on_change* and returns the content."""
    if path is None:
        await asyncio.Event().wait()
    assert path is not None, "only a file changes"
    previous = _stamp(path)
    while True:
        await asyncio.sleep(_FILE_PERIOD_S)
        stamp = _stamp(path)
        if stamp == previous:
            continue
        previous = stamp
        try:
            spec = await asyncio.to_thread(read)  # renewals must not wait for it
        except AgentFileError as error:
            _log.warning("the file cannot be read; what it said before goes on", problem=str(error))
            continue
        if spec._replace(name=current.name) != current:
            on_change()
            return spec


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_mtime_ns, info.st_ino


async def _registrations(
    client: Client, connection: Connection, spec: AgentFile, options: AgentOptions
) -> tuple[Registration, ...]:
    """Builds the registrations. The server is queried first: if it does not answer, that is the
    error to report, whatever this machine's addresses are.
    """
    services = []
    for entry in spec.services:
        namespace = entry.namespace or connection.namespace
        services.append(
            (namespace, await get_service(client, entry, namespace, create=options.create_service))
        )
    addresses = await asyncio.to_thread(own_addresses, connection.server, spec.addresses)
    return tuple(
        Registration(
            agent=spec.name,
            namespace=namespace,
            service=entry.service,
            addresses=addresses,
            ports=_named(entry.ports, service),
            checks=entry.checks or (CheckSpec(kind="tcp"),),
            zone=spec.zone,
            node_name=spec.node_name,
        )
        for entry, (namespace, service) in zip(spec.services, services, strict=True)
    )


async def get_service(
    client: Client, entry: ServiceEntry, namespace: str, *, create: bool
) -> Service | None:
    """Reads the Service; creates it if it is missing and *create* is set."""
    try:
        body = await client.get(Services, namespace, entry.service)
    except StatusError as error:
        if error.code != 404:
            raise
        if not create:
            return None
        ports = [_service_port(port) for port in entry.ports]
        manifest = {"metadata": {"name": entry.service}, "spec": {"ports": ports}}
        head = {"apiVersion": "v1", "kind": "Service"}
        write = Write(
            verb="create", resource=Services, namespace=namespace, body=encode({**head, **manifest})
        )
        try:
            body = await client.perform(write)
        except StatusError as error:
            if error.code != 409:
                raise
            body = await client.get(
                Services, namespace, entry.service
            )  # another agent created it in the meantime
    return decode(body, Service)


def _service_port(port: AgentPort) -> Document:
    """Builds a port of the Service: clients use 80 for ``http`` and 443 for ``https``; other ports
    keep their number.
    """
    number = _DEFAULT_PORTS.get(port.name, port.port)
    named = {"name": port.name} if port.name else {}
    return {**named, "port": number, "targetPort": port.port, "protocol": port.protocol}


def _named(ports: tuple[AgentPort, ...], service: Service | None) -> tuple[AgentPort, ...]:
    """Names *ports* as the Service does. A single port without a name stands for the only port of
    the Service.
    """
    service_ports = service.spec.ports or () if service is not None else ()
    if len(ports) == 1 and not ports[0].name and len(service_ports) == 1:
        return (
            AgentPort(
                service_ports[0].name,
                ports[0].port,
                service_ports[0].protocol or "TCP",
                service_ports[0].app_protocol,
            ),
        )
    by_name = {port.name: port for port in service_ports}
    return tuple(
        AgentPort(port.name, port.port, service_port.protocol or "TCP", service_port.app_protocol)
        if (service_port := by_name.get(port.name)) is not None
        else port
        for port in ports
    )


def _documents(registrations: tuple[Registration, ...]) -> str:
    documents = [
        registration.document(
            family, "unknown", lease_uid="", hint=bool(registration.zone), publish_not_ready=False
        )
        for registration in registrations
        for _, family, _ in registration.slices
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2)
