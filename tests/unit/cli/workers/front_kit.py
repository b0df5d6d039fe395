"""A unit of workers as its HTTP front sees it."""

from __future__ import annotations

from typing import Any


class Unit:
    """A unit as `http_front` sees it. `places` are the workers that serve."""

    def __init__(self, *places: int | None) -> None:
        self.places = dict(enumerate(places))
        self.announced = self.leaving = False

    @property
    def expected(self) -> list[int]:
        return list(self.places)

    @property
    def serving(self) -> dict[int, tuple[str, int]]:
        return {n: ("127.0.0.1", port) for n, port in self.places.items() if port is not None}

    def rows(self) -> list[dict[str, Any]]:
        return [{"worker": n, "stage": "ready" if p else "resting"} for n, p in self.places.items()]
