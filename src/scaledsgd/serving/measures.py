"""What the server has done so far, as Prometheus reads it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)  # seconds


class Measures:
    """Counts of answers and of the time they took, by route.

    >>> measures = Measures()
    >>> measures.answered("/v1/model", 200, 0.003)
    >>> print(measures.text({"scaledsgd_behind": ("gauge", "Events to learn.", 7)}))
    # HELP scaledsgd_behind Events to learn.
    # TYPE scaledsgd_behind gauge
    scaledsgd_behind 7
    # HELP scaledsgd_requests_total Answers by route and status.
    # TYPE scaledsgd_requests_total counter
    scaledsgd_requests_total{route="/v1/model",status="200"} 1
    # HELP scaledsgd_request_seconds Time from request to answer.
    # TYPE scaledsgd_request_seconds histogram
    scaledsgd_request_seconds_bucket{route="/v1/model",le="0.001"} 0
    ...
    scaledsgd_request_seconds_count{route="/v1/model"} 1
    <BLANKLINE>
    """

    def __init__(self):
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()

    def answered(self, route: str, status: int, seconds: float) -> None:
        self._statuses[route, status] += 1
        if route not in self._times:
            self._times[route] = [0] * (len(_BOUNDS) + 1)
        self._times[route][bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]

    def text(self, others: dict[str, tuple[str, str, float]]) -> str:
        """All of it. Args: others, more of them: kind, meaning and value by name."""
        lines = []
        for name, (kind, meaning, value) in others.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value:.12g}"]
        name = "scaledsgd_requests_total"
        lines += [f"# HELP {name} Answers by route and status.", f"# TYPE {name} counter"]
        for (route, status), count in sorted(self._statuses.items()):
            lines.append(f'{name}{{route="{route}",status="{status}"}} {count}')
        name = "scaledsgd_request_seconds"
        lines += [f"# HELP {name} Time from request to answer.", f"# TYPE {name} histogram"]
        for route, counts in sorted(self._times.items()):
            total = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{route="{route}",le="{bound}"}} {total}')
            lines.append(f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6g}')
            lines.append(f'{name}_count{{route="{route}"}} {total}')
        return "\n".join(lines) + "\n"
