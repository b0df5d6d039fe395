"""The bound on nesting is the same for sent values, for arriving values, and on every Python."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.errors import SchemaError
from shardbus.wire.misfit import Misfit
from shardbus.wire.nesting import NESTING_MAX, check_nesting
from shardbus.wire.schema import decode_value, decoder, encode_value


def depth_of(value: Any) -> int:
    """The levels, counted in the plain way."""
    if isinstance(value, dict):
        return 1 + max([*map(depth_of, value), *map(depth_of, value.values())], default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list | tuple) else 0


@given(
    st.recursive(
        st.integers(-200, 2**40) | st.text(max_size=40) | st.binary(max_size=40) | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.integers(-9, 9) | st.tuples(st.integers(-9, 9), st.tuples()), inner
            )
        ),
        max_leaves=40,
    ),
    st.integers(0, 6),
)
def test_levels_are_counted(value: Any, most: int) -> None:
    payload = msgpack.packb(value) if depth_of(value) else b"\x00"
    if depth_of(value) > most:
        with pytest.raises(Misfit, match="levels deep"):
            check_nesting(payload, most)
    else:
        check_nesting(payload, most)


def test_wide_values_are_not_deep() -> None:
    check_nesting(encode_value([[{}] for _ in range(9999)]))
    check_nesting(b"\x91" * 9 + b"\xc1" * 999)  # no message: the decoder refuses it


@pytest.mark.parametrize("levels", [NESTING_MAX + 2, 600, 1500, 90_000])
@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\xa1k", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"]
)
@pytest.mark.parametrize("declared_type", [Any, list, dict[str, Any]])
def test_deep_payloads_are_refused_before_they_are_decoded(
    levels: int, opening: bytes, declared_type: Any
) -> None:
    payload = opening * levels + b"\xc0"
    with pytest.raises(SchemaError, match="levels deep"):
        decode_value(payload)
    with pytest.raises(SchemaError, match="levels deep"):
        decoder(declared_type)(payload)


def test_the_bound_counts_what_is_sent_and_not_the_list_of_arguments() -> None:
    value: Any = 1
    for _ in range(NESTING_MAX):
        value = [value]
    assert decode_value(encode_value(value)) == value
    with pytest.raises(SchemaError, match="levels deep"):
        encode_value([value])
