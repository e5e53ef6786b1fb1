"""One agent: its core in a controller host, its checks, its child process and its socket, from
start to end.

**Order of the shutdown** (SIGTERM; ``agent drain`` does only the first step). Every endpoint
becomes terminating and still serves. Node proxies apply that, or ``drain_s`` passes. The child gets
SIGTERM and may finish its requests. Then the slices are deleted, and the Lease last. A second
signal skips the waits. If the child ends by itself, its endpoint becomes not ready immediately, and
the agent exits with its exit code.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from sliceplane.agent.controller import AgentController
from sliceplane.agent.io import control
from sliceplane.agent.io.child import Child
from sliceplane.agent.io.machine import MachineError, SleepWatch, own_addresses
from sliceplane.agent.io.node_barrier import wait_for_nodes
from sliceplane.agent.io.orphan import Custody, OnOrphan
from sliceplane.agent.io.probes import run_probe
from sliceplane.agent.tenure import AgentConfig, LeaseTerms
from sliceplane.consume.agents.checks import CheckProbe, Kind
from sliceplane.consume.agents.registration import Registration
from sliceplane.kit.io.log import get_logger
from sliceplane.kit.rng import Rng
from sliceplane.watch.io.base import Client
from sliceplane.watch.io.hosting.host import ControllerHost
from sliceplane.watch.io.reflect import loop_clock

#: seconds in which the server must accept the last writes
DEREGISTER_S: Final = 10.0
#: seconds between two inspections of the machine's address and sleep, which cause no events
INSPECT_PERIOD_S: Final = 2.0
EXIT_REFUSED: Final = 3

_log = get_logger("agent")


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``command``: of ``agent run``, else empty; ``custody``: of its process, set once the agent
    has its name. ``path``: the followed file; its agent waits while another host owns its name,
    other agents exit.
    """

    command: tuple[str, ...]
    terms: LeaseTerms
    drain_s: float
    stop_s: float
    create_service: bool
    dry_run: bool
    path: Path | None
    on_orphan: OnOrphan = "adopt"
    custody: Custody | None = None


class AgentPlan(msgspec.Struct, frozen=True):
    """The registrations of an agent, from its file and the server's answers. ``auto``: addresses
    track the machine's.
    """

    config: AgentConfig
    registrations: tuple[Registration, ...]
    server_url: str
    auto: bool


class Agent:
    """Runs until ``run`` returns. *notify* reports to a service manager (sd_notify), *print_line*
    to the user.

    *earlier*: the agent of this process before its file changed.
    """

    def __init__(
        self,
        client: Client,
        plan: AgentPlan,
        options: AgentOptions,
        *,
        earlier: Agent | None,
        notify: Callable[[str], None],
        print_line: Callable[[str], None],
    ) -> None:
        self._client = client
        self._plan = plan
        self._options = options
        self._earlier: AgentController | None = earlier._core if earlier is not None else None
        self._notify = notify
        self._print_line = print_line
        # Checks that continue use times of its clock; the wall clock may have been set since.
        self._clock: Callable[[], float] = (
            loop_clock(time.time()) if earlier is None else earlier._clock
        )
        #: last report of the child by kind, for a new core
        self._reported: dict[Kind, tuple[bool, str]] = {}
        self._core: AgentController = self._make_core()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        #: ``hand_over`` was called: another agent of this process continues with this one's objects
        self.handed_over = False
        self._probes: set[asyncio.Task[None]] = set()
        self._printed: dict[str, str] = {}
        self._ready = False

    def stop(self) -> None:
        """Starts the shutdown at a signal; a second signal skips the waits."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    def hand_over(self) -> None:
        self.handed_over = True
        self._stop.set()

    def _make_core(self) -> AgentController:
        rng = Rng(secrets.randbits(64))
        now = self._clock()
        self._core = AgentController(
            self._plan.config, self._plan.registrations, rng, now, earlier=self._earlier
        )
        for kind, (passed, text) in self._reported.items():
            for registration in self._plan.registrations:
                self._core.on_report(registration.key, kind, passed, text, now)
        return self._core

    async def run(self) -> int:
        """Runs the agent; returns the exit code: the child's, ``EXIT_REFUSED``, or 0. Raises
        ``OSError`` for a command that cannot start.
        """
        first_core = [self._core]
        host = self._host = ControllerHost(
            self._client, rng=Rng(secrets.randbits(64)), clock=self._clock
        )
        # The first core exists already; after a fault the host gets a new one.
        host.add(lambda: first_core.pop() if first_core else self._make_core(), max_in_flight=4)
        server = await control.serve(self._plan.config.name, self._answer)
        try:
            child = await self._start_child()
        except OSError:
            control.close(self._plan.config.name, server)
            raise
        host.start()
        tasks = [
            asyncio.create_task(self._watch_checks()),
            asyncio.create_task(self._watch_machine()),
        ]
        try:
            if child is not None:
                self._report_process(alive=True)
            code = await self._wait_for_end(child)
            if self.handed_over:
                return 0
            await self._shut_down(child)
            if child is not None and not code:
                code = await child.wait()
            return code
        finally:
            for task in (*tasks, *self._probes):
                task.cancel()
            await asyncio.gather(*tasks, *self._probes, return_exceptions=True)
            await host.close()
            control.close(self._plan.config.name, server)
            if child is not None:
                await child.end(0.0)
                child.close()

    async def _start_child(self) -> Child | None:
        """Raises ``OSError``."""
        options = self._options
        if not options.command:
            return None
        assert options.custody is not None, "the agent has its name"
        return await Child.start(
            options.command, self._on_child_ready, options.custody, self._print_line
        )

    # -- while it runs

    async def _wait_for_end(self, child: Child | None) -> int:
        """Waits for a signal, the child's end, or the refusal of the name; returns the exit code."""
        stopped = asyncio.create_task(self._stop.wait())
        ended = asyncio.create_task(child.wait()) if child is not None else None
        waits: list[asyncio.Task[Any]] = [stopped] if ended is None else [stopped, ended]
        try:
            while True:
                done, _ = await asyncio.wait(
                    waits, timeout=1.0, return_when=asyncio.FIRST_COMPLETED
                )
                if ended is not None and ended in done:
                    self._report_process(alive=False)
                    assert child is not None, "it ended"
                    self._print_line(child.outcome(ended.result()))
                    return ended.result()
                if stopped in done:
                    return 0
                if self._refusal() and self._options.path is None:
                    self._print_line(self._refusal())
                    return EXIT_REFUSED
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _refusal(self) -> str:
        return self._core.view(self._clock()).refusal

    async def _watch_checks(self) -> None:
        while True:
            now = self._clock()
            for probe in self._core.take_probes(now):
                task = asyncio.create_task(self._run_probe(probe))
                self._probes.add(task)
                task.add_done_callback(self._probes.discard)
            self._print_changes()
            due = self._core.next_check()
            await asyncio.sleep(0.25 if due is None else min(0.25, max(0.01, due - now)))

    async def _run_probe(self, probe: CheckProbe) -> None:
        registration = next(entry for entry in self._core.registrations if entry.key == probe.key)
        passed, text = await run_probe(
            probe.spec, registration.addresses[0], registration.ports[0].port
        )
        self._core.on_result(probe, passed, text, self._clock())
        self._host.wake()

    async def _watch_machine(self) -> None:
        sleep_watch = SleepWatch()
        while True:
            await asyncio.sleep(INSPECT_PERIOD_S)
            if sleep_watch.slept():
                _log.info("the machine slept: everything is checked anew")
                self._core.on_resume(self._clock())
            if self._plan.auto:
                await self._follow_address()
            self._host.wake()

    async def _follow_address(self) -> None:
        try:
            # Resolving the server's name can take long: renewals must not wait for it.
            addresses = await asyncio.to_thread(own_addresses, self._plan.server_url, ("auto",))
        except MachineError:
            return  # there is no route to the server: the old address does no harm
        if addresses != self._core.registrations[0].addresses:
            _log.info("the machine has another address", address=addresses[0])
            self._core.on_addresses(addresses, self._clock())

    def _on_child_ready(self) -> None:
        self._report_all("notify", passed=True, text="it said READY=1")

    def _report_process(self, *, alive: bool) -> None:
        self._report_all("process", passed=alive, text="it runs" if alive else "it ended")

    def _report_all(self, kind: Kind, *, passed: bool, text: str) -> None:
        self._reported[kind] = (passed, text)
        for registration in self._core.registrations:
            self._core.on_report(registration.key, kind, passed, text, self._clock())
        self._host.wake()

    def _print_changes(self) -> None:
        """Prints a line for each changed registration, and reports the same to the service manager."""
        view = self._core.view(self._clock())
        for entry in view.registrations if view.phase != "stopping" else ():
            line = (
                f"{entry.registration.key}: "
                f"{entry.state}{'' if entry.stored else ' (not stored yet)'}"
            )
            line += f": {entry.problem}" if entry.problem else ""
            if self._printed.get(entry.registration.key) != line:
                self._printed[entry.registration.key] = line
                # excluded from the comparison: the text of a check may differ each time
                line += "".join(
                    f"; {check.name}: {check.text}"
                    for check in entry.checks
                    if check.passing is False
                )
                self._notify(f"STATUS={line}")
                self._print_line(line)
        if not self._ready and all(
            entry.stored and entry.state == "passing" for entry in view.registrations
        ):
            self._ready = True
            self._notify("READY=1")
        self._notify(
            "WATCHDOG=1"
        )  # reported while this loop runs: an unreachable server is no reason to kill the process

    # -- its socket

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        now = self._clock()
        match question.get("verb"):
            case "status":
                pass
            case "drain" | "undrain" if not self._stop.is_set():
                self._core.on_drain(now, drain=question["verb"] == "drain")
            case "pass" | "fail":
                passed = question["verb"] == "pass"
                text = str(question.get("text", ""))[:200]
                accepted = [
                    self._core.on_report(each.key, "ttl", passed, text, now)
                    for each in self._core.registrations
                ]
                if not any(accepted):
                    raise ValueError(
                        "this agent has no check of the kind ttl: begin it with --ttl 30s"
                    )
            case other:
                raise ValueError(f"an agent that leaves does not {other}")
        self._host.wake()
        return self.status()

    def status(self) -> dict[str, Any]:
        """Returns the document of ``agent status -o json``."""
        now = self._clock()
        view = self._core.view(now)
        config = self._plan.config
        return {
            "agent": config.name,
            "identity": config.identity,
            "pid": os.getpid(),
            "phase": view.phase,
            "renewedSecondsAgo": {
                space: round(now - at, 1) for space, at in sorted(view.renewed_at.items())
            },
            "registrations": [
                {
                    "namespace": entry.registration.namespace,
                    "service": entry.registration.service,
                    "addresses": list(entry.registration.addresses),
                    "ports": {port.name: port.port for port in entry.registration.ports},
                    "state": entry.state,
                    "stored": entry.stored,
                    "problem": entry.problem,
                    "checks": [
                        {"check": check.name, "passing": check.passing, "saw": check.text}
                        for check in entry.checks
                    ],
                }
                for entry in view.registrations
            ],
        }

    # -- the end

    async def _shut_down(self, child: Child | None) -> None:
        self._stop.set()
        self._notify("STOPPING=1")
        seconds = self._options.drain_s + self._options.stop_s + DEREGISTER_S
        self._notify(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")
        if not self._refusal() and (child is None or child.is_running):
            await self._drain()
        if child is not None and child.is_running:
            code = await child.end(0.0 if self._hurry.is_set() else self._options.stop_s)
            self._print_line(child.outcome(code))
        self._core.on_stop(self._clock())
        self._host.wake()
        ends = time.monotonic() + DEREGISTER_S
        while not self._core.is_deregistered and time.monotonic() < ends:
            await asyncio.sleep(0.02)
        if not self._core.is_deregistered:
            self._print_line(
                "the server did not take the last writes: the endpoint goes when its Lease runs out"
            )

    async def _drain(self) -> None:
        self._core.on_drain(self._clock())
        self._host.wake()
        expected = sum(len(registration.slices) for registration in self._core.registrations)
        ends = time.monotonic() + self._options.drain_s
        while (
            len(self._core.drained_revisions()) < expected
            and time.monotonic() < ends
            and not self._hurry.is_set()
        ):
            await asyncio.sleep(0.02)
        waiting = asyncio.create_task(
            wait_for_nodes(
                self._client, self._core.drained_revisions(), max(0.0, ends - time.monotonic())
            )
        )
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((waiting, hurry), return_when=asyncio.FIRST_COMPLETED)
        self._print_line(f"drained: {waiting.result()}" if waiting.done() else "drained in a hurry")
        for task in (waiting, hurry):
            task.cancel()
        await asyncio.gather(waiting, hurry, return_exceptions=True)
