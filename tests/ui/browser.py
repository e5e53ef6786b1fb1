"""A real Chromium for tests, over the DevTools protocol: one browser, and tabs that remember what a
page must not do.

Everything runs in a loop of its own thread, so that tests are plain functions. A tab collects
console errors, exceptions, reports of the Content-Security-Policy and requests to anywhere but the
page's origin: ``Tab.faults``.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from tests.waiting import until

T = TypeVar("T")
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
NAMES = ("chromium", "chromium-headless-shell", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--remote-debugging-port=0",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--renderer-process-limit=1",
    "--force-color-profile=srgb",
    "--ignore-certificate-errors",
)
KEYS = {
    "ArrowDown": 40,
    "ArrowUp": 38,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
    "End": 35,
    "Home": 36,
}
START_S = 240.0


def program() -> str:
    """ "": there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), "")


class Background:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(START_S)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Browser:
    """Use as a ``with`` block."""

    def __enter__(self) -> Browser:
        self._background = Background()
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        self._background.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._background.call(self._stop())
        self._background.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def tab(
        self, url: str = "about:blank", *, width: int = 1280, height: int = 800, dark: bool = False
    ) -> Tab:
        tab = Tab(self, self._background.call(self._open()))
        tab.resize(width, height)
        tab.media(dark=dark)
        if url != "about:blank":
            tab.go(url)
        return tab

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            program(),
            *FLAGS,
            f"--user-data-dir={self._folder}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "HOME": self._folder, "XDG_CACHE_HOME": self._folder},
        )
        assert self._process.stderr is not None
        said = ""
        while not (found := re.search(r"DevTools listening on (ws://\S+)", said)):
            text = await self._process.stderr.readline()
            assert text, f"Chromium has ended: {said}"
            said += text.decode(errors="replace")
        self._drain = asyncio.ensure_future(self._process.stderr.read())
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(found[1], max_msg_size=0, heartbeat=None)
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tabs: dict[str, Tab] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def _stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._drain
        await self._reading  # the connection has ended
        await self._socket.close()
        await self._http.close()

    async def _open(self) -> str:
        target = await self.ask("Target.createTarget", {"url": "about:blank"})
        attached = await self.ask(
            "Target.attachToTarget", {"targetId": target["targetId"], "flatten": True}
        )
        session: str = attached["sessionId"]
        return session

    async def _read(self) -> None:
        async for message in self._socket:
            document = json.loads(message.data)
            future = self._asked.pop(document.get("id", 0), None)
            if future is not None and not future.done():
                future.set_result(document)
            elif "method" in document and document.get("sessionId") in self._tabs:
                self._tabs[document["sessionId"]].on_event(document["method"], document["params"])

    async def ask(self, method: str, params: dict[str, Any], session: str = "") -> Any:
        number = next(self._numbers)
        self._asked[number] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json(
            {
                "id": number,
                "method": method,
                "params": params,
                **({"sessionId": session} if session else {}),
            }
        )
        answer = await future
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def call(self, method: str, params: dict[str, Any], session: str = "") -> Any:
        return self._background.call(self.ask(method, params, session))

    def enter(self, session: str, tab: Tab) -> None:
        self._tabs[session] = tab


class Tab:
    """One page.  ``faults``: what it must not have done."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._traced: list[dict[str, Any]] = []
        self._trace_over = False
        self._origin = ""
        browser.enter(session, self)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, params, self._session)

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "assert"):
                self.faults.append(
                    "console: "
                    f"{[entry.get('value', entry.get('description')) for entry in params['args']]}"
                )
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.faults.append(
                    f"exception: {details.get('exception', {}).get('description', details['text'])}"
                )
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.faults.append(
                    f"log: {params['entry']['text']} {params['entry'].get('url', '')}"
                )
            case "Tracing.dataCollected":
                self._traced += params["value"]
            case "Tracing.tracingComplete":
                self._trace_over = True
            case "Network.requestWillBeSent":
                url = params["request"]["url"]
                self.requests.append(url)
                if not url.startswith((self._origin, "data:", "about:")):
                    self.faults.append(f"a request to elsewhere: {url}")

    def go(self, url: str) -> None:
        self._origin = "/".join(url.split("/")[:3]) + "/"
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def trace(self) -> None:
        self._traced, self._trace_over = [], False
        self.send(
            "Tracing.start", categories="toplevel,blink.user_timing", transferMode="ReportEvents"
        )

    def longest_task_ms(self, mark: str) -> float:
        """Since ``trace``, of the thread of the page that set the mark: by the CPU that it took, so
        that what else the machine does counts little.
        """
        self.send("Tracing.end")
        until(lambda: self._trace_over)
        thread = next(
            (event["pid"], event["tid"]) for event in self._traced if event["name"] == mark
        )
        return max(
            event.get("tdur", 0) / 1000
            for event in self._traced
            if (event["pid"], event["tid"]) == thread
        )

    def resize(self, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def media(self, *, dark: bool = False, still: bool = True) -> None:
        self.send(
            "Emulation.setEmulatedMedia",
            features=[
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
                {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
            ],
        )

    def eval(self, script: str) -> Any:
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """What *script* gives as soon as that is true."""
        return until(lambda: self.eval(script), ignoring=(AssertionError,))

    def shows(self, text: str, where: str = "body") -> None:
        """Waits until *text* is to be read."""
        until(lambda: self.text(where), lambda seen: text in seen, ignoring=(AssertionError,))

    def text(self, where: str = "body") -> str:
        """The text of the first element that the selector *where* matches; "" if there is none."""
        return str(self.eval(f"document.querySelector({json.dumps(where)})?.innerText ?? ''"))

    def press(self, key: str) -> None:
        code = KEYS.get(key)
        text = {"text": "\r" if key == "Enter" else key} if code is None or key == "Enter" else {}
        number = {"windowsVirtualKeyCode": code} if code is not None else {}
        self.send(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            code=key if code else "",
            **text,
            **number,
        )
        self.send(
            "Input.dispatchKeyEvent", type="keyUp", key=key, code=key if code else "", **number
        )

    def write(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        taken = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(taken["data"]))

    def close(self) -> None:
        self.send("Page.close")


def violations(tab: Tab) -> list[str]:
    found: list[str] = tab.eval(
        "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => "
        "violations.map((rule) => "
        "`${rule.id}: "
        "${rule.nodes.map((node) => node.html + ' ' + node.failureSummary).slice(0, 3)}`))"
    )
    return found
