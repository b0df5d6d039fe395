"""The laws hold at the end of each unit test."""

from tests.laws import pytest_pyfunc_call as pytest_pyfunc_call
