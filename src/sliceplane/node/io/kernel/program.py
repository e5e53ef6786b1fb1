"""Runs a program that changes the kernel's rules: its text by standard input, in a network
namespace if requested.

Programs are used besides netlink messages because their text is a stable interface, and an
administrator's log has exactly the text that was sent. Every failure becomes one ``KernelError``
with a sentence for the user; this module raises nothing else but cancellation.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from typing import IO

from sliceplane.kit.io.process import descriptors
from sliceplane.node.io.kernel.backend import KernelError

_MESSAGE_LENGTH_MAX = 400
#: errors of a temporary shortage on the machine, not of the program or our rights
_SCARCE = descriptors.EXHAUSTED | {errno.ENOMEM, errno.ENOSPC, errno.EAGAIN}


class KernelProgram:
    """Runs the programs of *package*, which change *rules* (a word for messages), in ``netns``, a
    name under /run/netns; "" is our own. Failures raise *error*.
    """

    def __init__(
        self,
        *,
        netns: str,
        timeout_s: float,
        package: str,
        rules: str,
        error: type[KernelError] = KernelError,
    ) -> None:
        self._netns = netns
        self._timeout_s = timeout_s
        self._package = package
        self._rules = rules
        self._error = error

    async def run(
        self, program: str, *arguments: str, stdin: str = "", extra_s: float = 0.0
    ) -> str:
        """Runs *program* and returns its standard output; cancellation kills it. *extra_s*: seconds
        beyond the usual time-out. Raises *error*.
        """
        text, _ = await self.run_for_code(program, *arguments, stdin=stdin, extra_s=extra_s)
        return text

    async def run_for_code(
        self,
        program: str,
        *arguments: str,
        stdin: str = "",
        extra_s: float = 0.0,
        codes: tuple[int, ...] = (0,),
    ) -> tuple[str, int]:
        """Does the same as ``run`` and returns the exit code too, which may be any of *codes*."""
        timeout_s = self._timeout_s + extra_s
        command = [program, *arguments]
        name = os.path.basename(program)
        if self._netns:
            command = ["ip", "netns", "exec", self._netns, *command]
        try:
            with _in_memory(stdin) as text:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=text,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
        except (OSError, RuntimeError) as error:
            raise self._start_error(command[0], error) from error
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate()
        except TimeoutError as error:
            raise self._error("timeout", f"{name} did not answer within {timeout_s:g} s") from error
        finally:
            # Timed out or cancelled: the kernel applied the transaction as a whole, or never will.
            if process.returncode is None:
                process.kill()
                await process.wait()
        code = process.returncode or 0
        errors = stderr.decode(errors="replace")
        # A missing namespace is an error of ip netns, whatever the exit code.
        if code not in codes or (code and "network namespace" in errors):
            raise self.explain(name, errors, code)
        return stdout.decode(errors="replace"), code

    def explain(self, name: str, stderr: str, code: int) -> KernelError:
        """Returns the error of a failed run, from the output of the program (or ip netns)."""
        if "Cannot open network namespace" in stderr:
            return self._error("namespace", f'there is no network namespace "{self._netns}"')
        if "exec of" in stderr and "failed" in stderr:
            return self._error(
                "missing", f"{name} was not found: install the package {self._package}"
            )
        if (
            "Operation not permitted" in stderr
            or "must be root" in stderr
            or "Permission denied" in stderr
        ):
            return self._error(
                "permission", f"changing {self._rules} rules needs root (CAP_NET_ADMIN)"
            )
        first = next(
            (line.strip() for line in stderr.splitlines() if line.strip()), f"exit code {code}"
        )
        if len(first) > _MESSAGE_LENGTH_MAX:
            first = first[:_MESSAGE_LENGTH_MAX] + "..."
        return self._error("rejected", f"{name} refused the transaction: {first}")

    def check_version(self, name: str, answer: str, minimum: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the version in *answer*, the output of ``--version``. Raises *error* if it is older
        than *minimum*.
        """
        version = parse_version(answer)
        if version is None or version < minimum:
            required = ".".join(map(str, minimum))
            raise self._error(
                "version",
                f"{name} {required} or newer is needed, this is {answer.strip() or 'unknown'}",
            )
        return version

    def _start_error(self, program: str, error: OSError | RuntimeError) -> KernelError:
        if isinstance(
            error, RuntimeError
        ):  # asyncio waits for it in a thread, and no more can be started
            return self._error("resources", f"{program} could not be started: {error}")
        descriptors.report(error, program)
        if error.errno in _SCARCE:
            return self._error("resources", f"{program} could not be started: {error.strerror}")
        if isinstance(error, FileNotFoundError):
            package = "iproute2" if program == "ip" else self._package
            return self._error("missing", f"{program} was not found: install the package {package}")
        return self._error("permission", f"{program} could not be started: {error.strerror}")


def _in_memory(text: str) -> IO[bytes]:
    """Returns a file with *text*.  Raises ``OSError``.

    It is not a pipe: a program that ends without reading it (``--version``, or after an early error)
    would close the pipe while we write, and a large transaction would be sent in pieces.
    """
    file = os.fdopen(os.memfd_create("rules"), "w+b")
    try:
        file.write(text.encode())
        file.seek(0)
    except OSError:
        file.close()
        raise
    return file


def parse_version(text: str) -> tuple[int, ...] | None:
    """Parses a version: ``nftables v1.0.6 (Lester Gooch #5)`` -> (1, 0, 6)."""
    version = re.search(r"v(\d+(?:\.\d+)+)", text)
    return tuple(map(int, version.group(1).split("."))) if version else None
