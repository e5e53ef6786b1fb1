"""Executes one check of a process: a short text of the observation, and whether the check passed.

The rules are kubelet's: an HTTP status of 200 to 399 passes, certificates are not verified,
redirects are not followed; a command passes with exit code 0. Checks connect to the registered
address: a process that listens only on loopback would pass a local check, but no client would reach
it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from asyncio.subprocess import Process, SubprocessStreamProtocol
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from sliceplane.consume.agents.checks import CheckSpec
from sliceplane.kit.io.process.orphans import ended_with_us
from sliceplane.kit.ip import join_host_port
from sliceplane.watch.io.http.answers import BadStream, request_head
from sliceplane.watch.io.http.requests import PATH_SAFE
from sliceplane.watch.io.http.wire import ClientConnection

#: maximum bytes of a command's output in the text
_OUTPUT_MAX: Final = 200
_PORTION_BYTES: Final = 64 * 1024
_GRPC_METHOD: Final = "/grpc.health.v1.Health/Check"
#: timeout of the loopback test after a failed check; a machine's own addresses answer immediately
_LOOPBACK_TIMEOUT_S: Final = 0.5
#: HealthCheckResponse with status SERVING
_SERVING: Final = b"\x08\x01"


class Failed(Exception):
    """A failed check; the text describes the observation in a few words."""


async def run_probe(spec: CheckSpec, address: str, first_port: int) -> tuple[bool, str]:
    """Executes the check; returns whether it passed, and a text. Raises only if cancelled, and
    takes hardly longer than the check's timeout.
    """
    try:
        async with asyncio.timeout(spec.timeout_s):
            return True, await _observe(spec, address, spec.port or first_port)
    except TimeoutError:
        return False, f"no answer within {spec.timeout_s:g} s"
    except (Failed, OSError) as error:
        number = error.errno if isinstance(error, OSError) else None
        text = os.strerror(number) if number else str(error)
    if spec.kind != "exec" and await _answers_on_loopback_alone(address, spec.port or first_port):
        text += "; it listens on a loopback address alone, which no other machine reaches"
    return False, text


async def _answers_on_loopback_alone(address: str, port: int) -> bool:
    loopback = "::1" if ":" in address else "127.0.0.1"
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_LOOPBACK_TIMEOUT_S):
            try:
                await _open(address, port)
            except ConnectionRefusedError:
                await _open(loopback, port)
                return True
    return False


async def _open(address: str, port: int) -> None:
    _, writer = await asyncio.open_connection(address, port)
    writer.close()


async def _observe(spec: CheckSpec, address: str, port: int) -> str:
    match spec.kind:
        case "http" | "https":
            return await _http(spec, address, port)
        case "tcp":
            await _open(address, port)
            return "connected"
        case "grpc":
            return await _grpc(spec.target, address, port)
        case "exec":
            return await _run_command(spec.target)
        case other:
            raise AssertionError(f"{other} is no check")


async def _http(spec: CheckSpec, address: str, port: int) -> str:
    context = None
    if spec.kind == "https":
        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT
        )  # authorities are not read: certificates are not verified
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    headers = (
        ("Host", join_host_port(address, port)),
        ("User-Agent", "sliceplane-agent"),
        ("Connection", "close"),
    )
    loop = asyncio.get_running_loop()
    try:
        request = request_head("GET", quote(spec.target or "/", safe=PATH_SAFE), headers)
        _, connection = await loop.create_connection(ClientConnection, address, port, ssl=context)
    except ssl.SSLError as error:
        raise Failed(f"no TLS: {(error.reason or str(error)).lower().replace('_', ' ')}") from error
    try:
        status = (await connection.ask("GET", request)).status
    except BadStream as error:
        raise Failed(f"no HTTP: {error}") from error
    finally:
        connection.abort()
    if not 200 <= status < 400:
        raise Failed(f"status {status}")
    return f"status {status}"


async def _grpc(service: str, address: str, port: int) -> str:
    try:
        import grpc
    except ModuleNotFoundError as error:
        raise Failed(
            "a gRPC check needs the package grpcio: pip install 'sliceplane[etcd]'"
        ) from error
    name = service.encode()
    # HealthCheckRequest: field 1, a string shorter than 128 bytes
    request = b"\x0a" + bytes((len(name),)) + name if name else b""
    # The environment's proxy must not be used: the check is of the process itself.
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(join_host_port(address, port), options=options) as channel:
        try:
            call: Any = channel.unary_unary(_GRPC_METHOD)
            answer: bytes = await call(request)
        except grpc.aio.AioRpcError as error:
            raise Failed(f"{error.code().name}: {error.details()}") from error
    if not answer.startswith(_SERVING):
        raise Failed("not SERVING")
    return "SERVING"


async def _run_command(line: str) -> str:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_shell(
        lambda: SubprocessStreamProtocol(limit=_PORTION_BYTES, loop=loop),
        line,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    process = Process(transport, protocol, loop)
    try:
        with ended_with_us(process.pid):
            text = (await _read_beginning(process.stdout)).decode(errors="replace").strip()
            await process.wait()
    finally:
        # The whole process group: children of the command must not outlive the check.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        transport.close()  # unread output would keep the pipe open
        await process.wait()
    if process.returncode:
        raise Failed(f"exit code {process.returncode}{': ' if text else ''}{text}")
    return text or "exit code 0"


async def _read_beginning(stream: asyncio.StreamReader | None) -> bytes:
    """Returns the part of a command's output that is displayed; the rest is read and dropped,
    because a full pipe would block the command.
    """
    assert stream is not None, "the output is a pipe"
    beginning = b""
    while portion := await stream.read(_PORTION_BYTES):
        beginning = (
            (beginning + portion)[:_OUTPUT_MAX] if len(beginning) < _OUTPUT_MAX else beginning
        )
    return beginning
