"""What an HTTP client counts, under client-go's names, labels and buckets."""

from __future__ import annotations

from typing import Final

from sliceplane.kit.metrics import Metrics

_BOUNDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class HttpMetrics(Metrics):
    """Owned by one ``HttpClient``.  *host* is the server's, as in the label of that name."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host
        answers = ("code", "method", "host")
        self._requests = self.counters("rest_client_requests_total", "Requests by their answers.", *answers)
        self._retries = self.counters("rest_client_request_retries_total", "Requests that were sent again.", *answers)
        self._seconds = self.histograms(
            "rest_client_request_duration_seconds", "Head of the request to answer.", _BOUNDS, "verb", "host"
        )
        self._limited = self.histograms(
            "rest_client_rate_limiter_duration_seconds", "Waiting for the limit of our own.", _BOUNDS, "verb", "host"
        )

    def answered(self, method: str, code: str, seconds: float) -> None:
        """*code* is ``<error>`` where there was no answer."""
        self._requests.of(code, method, self._host).value += 1
        self._seconds.of(method, self._host).observe(seconds)

    def retried(self, method: str, code: str) -> None:
        self._retries.of(code, method, self._host).value += 1

    def limited(self, method: str, seconds: float) -> None:
        """A request waited so long for its turn."""
        self._limited.of(method, self._host).observe(seconds)
