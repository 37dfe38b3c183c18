"""Figures and how they are said: medians and tails of one run, ratios, the promise beside each. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

_SHOWN: Mapping[bool | None, str] = MappingProxyType({True: "ok  ", False: "MISS", None: "?   "})


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one thing, in milliseconds."""

    samples: tuple[float, ...]

    @property
    def p50(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The smallest sample that 99 % of all do not exceed."""
        ordered = sorted(self.samples)
        return ordered[min(len(ordered) - 1, -(-len(ordered) * 99 // 100) - 1)]

    def as_json(self) -> dict[str, float | int]:
        return {"n": len(self.samples), "p50_ms": round(self.p50, 3), "p99_ms": round(self.p99, 3)}


@dataclass(frozen=True, slots=True)
class Row:
    """One promise: what was measured, against what floor, and whether it holds."""

    name: str
    measured: str  # for people
    promise: str
    holds: bool | None  # None: it was not measured, so nobody knows
    details: dict[str, object]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "measured": self.measured,
            "promise": self.promise,
            "holds": self.holds,
            **self.details,
        }


def ratio(name: str, ours: Series, floor: Series, *, times: float, plus_ms: float | None = None) -> Row:
    """Ours against the floor at p50: at most `times` it, and at most `plus_ms` above it where that is promised."""
    factor, above = ours.p50 / floor.p50, ours.p50 - floor.p50
    promise = f"<= {times:g}x" + (f" and <= floor + {plus_ms:g} ms" if plus_ms is not None else "")
    return Row(
        name,
        f"p50 {ours.p50:.2f} ms, p99 {ours.p99:.2f}; floor {floor.p50:.2f} ms, p99 {floor.p99:.2f}; "
        f"{factor:.2f}x, {above:+.2f} ms",
        promise,
        factor <= times and (plus_ms is None or above <= plus_ms),
        {"ours": ours.as_json(), "floor": floor.as_json(), "ratio": round(factor, 3), "above_ms": round(above, 3)},
    )


def at_least(name: str, value: float, unit: str, least: float, **details: object) -> Row:
    return Row(name, f"{value:.2f}{unit}", f">= {least:g}{unit}", value >= least, {"value": round(value, 3), **details})


def at_most(name: str, value: float, unit: str, most: float, **details: object) -> Row:
    return Row(name, f"{value:.2f} {unit}", f"<= {most:g} {unit}", value <= most, {"value": round(value, 3), **details})


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through points, by least squares."""

    slope: float
    error: float  # standard error of the slope

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Line:
        """Three points or more, not all of one x."""
        n = len(points)
        middle_x, middle_y = (sum(values) / n for values in zip(*points, strict=True))
        spread = sum((x - middle_x) ** 2 for x, _ in points)
        slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / spread
        left = sum((y - middle_y - slope * (x - middle_x)) ** 2 for x, y in points)
        return cls(slope, (left / (n - 2) / spread) ** 0.5)


def as_text(machine: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    lines = [machine, ""]
    for row in rows:
        lines += [f"{_SHOWN[row.holds]} {row.name}: {row.measured}", f"     promised {row.promise}"]
    return "\n".join([*lines, *(f"note {note}" for note in notes)]) + "\n"
