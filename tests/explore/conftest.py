"""The laws hold at the end of each exploration."""

from tests.laws import pytest_pyfunc_call as pytest_pyfunc_call
