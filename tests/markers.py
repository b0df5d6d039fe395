"""Marks for parameters of tests."""

from __future__ import annotations

from typing import Any

import pytest


def long_only(*values: Any) -> list[Any]:
    """Return parameters that `make test` leaves to `make test-long`."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def soak_only(*values: Any) -> list[Any]:
    """Return parameters that `make test` and `make test-long` leave to `make test-soak`."""
    return [pytest.param(value, marks=pytest.mark.soak) for value in values]
