"""What an HTTP client counts, under client-go's names, labels and buckets."""

from __future__ import annotations

from typing import Final

from sliceplane.kit.samples import Family, Histogram, Sample

_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


class HttpSamples:
    """Owned by one ``HttpClient``.  *host* is the server's, as in the label of that name."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._requests: dict[tuple[str, str], int] = {}
        self._retries: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, Histogram] = {}
        self._limited: dict[str, Histogram] = {}

    def answered(self, method: str, code: str, seconds: float) -> None:
        """*code* is ``<error>`` where there was no answer."""
        self._requests[code, method] = self._requests.get((code, method), 0) + 1
        self._seconds.setdefault(method, Histogram(_SECONDS)).observe(seconds)

    def retried(self, method: str, code: str) -> None:
        self._retries[code, method] = self._retries.get((code, method), 0) + 1

    def limited(self, method: str, seconds: float) -> None:
        """A request waited so long for its turn."""
        self._limited.setdefault(method, Histogram(_SECONDS)).observe(seconds)

    def families(self) -> tuple[Family, ...]:
        return (
            self._counts("rest_client_requests_total", "Requests by their answers.", self._requests),
            self._counts("rest_client_request_retries_total", "Requests that were sent again.", self._retries),
            self._histograms("rest_client_request_duration_seconds", "Head of the request to answer.", self._seconds),
            self._histograms(
                "rest_client_rate_limiter_duration_seconds", "Waiting for the limit of our own.", self._limited
            ),
        )

    def _counts(self, name: str, help_text: str, counts: dict[tuple[str, str], int]) -> Family:
        samples = tuple(Sample((*labels, self._host), count) for labels, count in sorted(counts.items()))
        return Family(name, "counter", help_text, ("code", "method", "host"), samples)

    def _histograms(self, name: str, help_text: str, found: dict[str, Histogram]) -> Family:
        samples = tuple(Sample((method, self._host), each.read()) for method, each in sorted(found.items()))
        return Family(name, "histogram", help_text, ("verb", "host"), samples)
