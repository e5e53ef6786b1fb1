"""Calls to an etcd cluster: one channel to each member, one call at a time to one of them.

Built on grpcio's plain (thread) API with callbacks, not on ``grpc.aio``: a call's end comes from
grpcio's own thread, and the caller hands it to its loop. Nothing here retries, since only the
caller knows what is safe; after a call without an answer the next one goes to another member.

Every call carries ``hasleader``: a member that was cut off from the majority then says so at once,
and ends watches, in place of keeping silent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import msgspec

from sliceplane.kit.io.files import CREDENTIAL_BYTES_MAX, read_bytes
from sliceplane.kit.metrics import CALL_BUCKETS, Family, Metrics
from sliceplane.server.io.storage.etcd import wire

#: one attempt; a disk that needs longer is as good as broken, and what is asked may be asked again
CALL_S_MAX: Final = 2.0
_METADATA: Final = (("hasleader", "true"),)
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # etcd takes a ping each 5 s and no more; a member that stopped is noticed by the calls in the
    # meantime
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
#: etcd looked at it and will not do it
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)

#: of these, what has nothing to do with the one request
_LASTING: Final = frozenset(
    {
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


class EtcdError(Exception):
    """The text is one sentence for a person."""


class NoAnswer(EtcdError):
    """Nothing is known: a write may have happened, and may still happen."""


class Refused(EtcdError):
    """etcd looked at the request and did nothing. *lasting*: it will not take others either (it is
    full, or we have no rights).
    """

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting


class EtcdCompacted(Refused):
    """The revision that was asked for is gone."""


#: gets the answer, or the error that came instead
Done = Callable[[Any, EtcdError | None], None]


class EtcdConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``servers``: URLs; ``http://`` or ``https://``.  Files are PEM."""

    servers: tuple[str, ...]
    prefix: str = "/sliceplane"
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    #: 0: never; then another program has to
    compaction_interval_s: float = 300.0


class EtcdClient:
    """Any thread may call; callbacks come from threads of grpcio, and must be short and never
    raise.
    """

    def __init__(self, config: EtcdConfig) -> None:
        """Raises ``OSError`` if a file cannot be read.  Connects later, by itself."""
        credentials = _credentials(config)
        self.servers = config.servers
        self._channels = [_channel(server, credentials) for server in config.servers]
        self._calls: list[dict[str, Any]] = [
            {
                name: channel.unary_unary(
                    path, lambda message: message.SerializeToString(), answer.FromString
                )
                for name, (path, answer) in wire.METHODS.items()
            }
            for channel in self._channels
        ]
        self._current = 0
        self._lock = threading.Lock()
        # Upstream's metrics of its etcd client; ``operation`` is the call, as a batch is of many
        # kinds of objects.
        metrics = self._metrics = Metrics()
        self._seconds = metrics.histograms(
            "etcd_request_duration_seconds", "Calls to etcd.", CALL_BUCKETS, "operation"
        )
        self._count = metrics.counters("etcd_requests_total", "Calls to etcd.", "operation")
        self._errors = metrics.counters(
            "etcd_request_errors_total", "Calls to etcd that failed.", "operation"
        )

    @property
    def current(self) -> str:
        """The member that the next call goes to."""
        return self.servers[self._current]

    def call(self, method: str, request: Any, done: Done, *, timeout_s: float = CALL_S_MAX) -> None:
        """*done* gets the answer, or the error that came instead."""
        member = self._current
        started = time.perf_counter()
        future = self._calls[member][method].future(request, timeout=timeout_s, metadata=_METADATA)

        def ended(call: Any) -> None:
            self._observe(
                method, time.perf_counter() - started, failed=call.code() is not grpc.StatusCode.OK
            )
            if call.code() is grpc.StatusCode.OK:
                done(call.result(), None)
            else:
                error = error_of(call, self.servers[member])
                if isinstance(error, NoAnswer):
                    self.leave(member)
                done(None, error)

        future.add_done_callback(ended)

    def ask(self, method: str, request: Any, *, timeout_s: float = CALL_S_MAX) -> Any:
        """The answer.  Blocks; raises ``EtcdError``."""
        answered = threading.Event()
        box: list[tuple[Any, EtcdError | None]] = []

        def done(answer: Any, error: EtcdError | None) -> None:
            box.append((answer, error))
            answered.set()

        self.call(method, request, done, timeout_s=timeout_s)
        if not answered.wait(timeout_s + 5):
            raise NoAnswer(f"{self.current} does not answer")
        ((answer, error),) = box
        if error is not None:
            raise error
        return answer

    def leave(self, member: int) -> None:
        """*member* did not answer: the next call goes to another one."""
        with self._lock:
            if self._current == member:
                self._current = (member + 1) % len(self._channels)

    def watch(self, requests: Any) -> tuple[Any, int]:
        """A stream of ``WatchResponse`` for the iterator *requests*, and the member that it
        is of.
        """
        member = self._current
        method: Any = self._channels[member].stream_stream(
            wire.WATCH, lambda message: message.SerializeToString(), wire.WatchResponse.FromString
        )
        return method(requests, metadata=_METADATA), member

    def close(self) -> None:
        for channel in self._channels:
            with contextlib.suppress(Exception):
                channel.close()

    def _observe(self, method: str, seconds: float, *, failed: bool) -> None:
        with self._lock:
            self._seconds.of(method).observe(seconds)
            self._count.of(method).value += 1
            self._errors.of(method).value += failed

    def families(self) -> tuple[Family, ...]:
        with self._lock:
            return self._metrics.families()


def error_of(call: Any, server: str) -> EtcdError:
    code = call.code()
    why = " ".join((call.details() or "").split())
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in why:
        return EtcdCompacted(why)
    if code in _REFUSALS and "etcdserver" in why:
        return Refused(why, lasting=code in _LASTING)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoAnswer(f"{server} did not answer in time")
    return NoAnswer(f"{server}: {why or code.name.lower()}")


def _credentials(config: EtcdConfig) -> grpc.ChannelCredentials:
    files = (config.ca_file, config.key_file, config.cert_file)
    authority, key, certificate = (
        None if file is None else read_bytes(file, CREDENTIAL_BYTES_MAX) for file in files
    )
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _channel(server: str, credentials: grpc.ChannelCredentials) -> grpc.Channel:
    scheme, _, address = server.partition("://")
    if scheme == "https":
        return grpc.secure_channel(address.rstrip("/"), credentials, _OPTIONS)
    return grpc.insecure_channel(address.rstrip("/"), _OPTIONS)
