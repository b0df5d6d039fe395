"""The meaning of each error of a Redis server for a call: sent again or not, certainly not run or
in doubt."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as redis_errors

from shardbus.errors import StoreUnavailable
from shardbus.store.redis_check import check_server
from shardbus.store.redis_errors import trouble_of
from tests.unit.store.store_suite import LONG_S

IN_SCRIPT = " script: 2f7521fb5789ffff2c4cb29d39671875e258bcbc, on @user_script:23."
OLD_SCRIPT = "Error running script (call to f_x): @user_script:15: @user_script: 15: -"


@pytest.mark.parametrize(
    ("error", "says", "again", "definite"),
    [
        (redis_errors.ReadOnlyError("You can't write"), "READONLY", True, True),
        (redis_errors.ResponseError("READONLY You can't" + IN_SCRIPT), "READONLY", True, True),
        (redis_errors.ResponseError("NOREPLICAS Not enough good"), "NOREPLICAS", True, True),
        (redis_errors.BusyLoadingError("Redis is loading"), "LOADING", True, True),
        (redis_errors.MasterDownError("Link with MASTER is down"), "MASTERDOWN", True, True),
        (redis_errors.ClusterDownError("CLUSTERDOWN The cluster"), "CLUSTERDOWN", True, True),
        (redis_errors.TryAgainError("TRYAGAIN Multiple keys"), "TRYAGAIN", True, True),
        (redis_errors.ResponseError("BUSY Redis is busy running a script"), "BUSY", True, True),
        (redis_errors.ResponseError("UNBLOCKED force unblock"), "UNBLOCKED", True, True),
        (redis_errors.OutOfMemoryError("command not allowed" + IN_SCRIPT), "OOM", False, True),
        (redis_errors.ResponseError(OLD_SCRIPT + "OOM command not allowed"), "OOM", False, True),
        (redis_errors.ResponseError("MISCONF Redis is configured to"), "MISCONF", False, True),
        (redis_errors.AuthenticationError("Authentication required."), "NOAUTH", False, True),
        (redis_errors.AuthenticationError("invalid username-password"), "WRONGPASS", False, True),
        (redis_errors.NoPermissionError("no permissions to run 'eval'"), "NOPERM", False, True),
        (redis_errors.ResponseError("The user executing the script can't run this command"
                                    + IN_SCRIPT), "NOPERM", False, False),
        (redis_errors.NoPermissionError("The user executing the script can't run this command"),
         "NOPERM", False, False),
        (redis_errors.ResponseError("unknown command 'EVAL', with args beginning with: "),
         "lacks a command", False, False),
        (redis_errors.ResponseError("Unknown Redis command called from script" + IN_SCRIPT),
         "lacks a command", False, False),
        (redis_errors.ConnectionError("Error 111 connecting"), "Error 111", True, False),
        (redis_errors.ConnectionError("max number of clients reached"), "max number", True, True),
        (redis_errors.ConnectionError("SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
         "trusted", True, True),
        (redis_errors.ConnectionError("tlsv13 alert certificate required"),
         "does not trust this client", True, True),
        (redis_errors.TimeoutError("Timeout reading"), "Timeout", True, False),
        (TimeoutError(), "does not respond", True, False),
        (redis_errors.ResponseError("WRONGTYPE Operation"), "WRONGTYPE", False, False),
        (redis_errors.RedisClusterException("no node"), "no node", False, False),
    ],
)  # fmt: skip
def test_each_error_is_judged(error: Exception, says: str, again: bool, definite: bool) -> None:
    trouble = trouble_of(error)
    assert says in trouble.what
    assert "script:" not in trouble.what
    assert (trouble.again, trouble.definite) == (again, definite)


@pytest.mark.parametrize(
    "code", ["READONLY", "OOM", "MISCONF", "NOREPLICAS", "WRONGPASS", "NOPERM", "LOADING"]
)
def test_what_an_operator_can_mend_has_advice(code: str) -> None:
    assert trouble_of(redis_errors.ResponseError(f"{code} and so on")).hint


def test_a_word_of_an_id_is_no_code() -> None:
    """A text of the server may quote a key."""
    trouble = trouble_of(redis_errors.ResponseError("WRONGTYPE key BUSYBEE"))
    assert "WRONGTYPE" in trouble.what


def test_a_server_that_wants_a_certificate_of_the_client_has_a_remedy_of_its_own() -> None:
    alert = "(1, '[SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert unknown ca (_ssl.c:2559)')"
    hint = trouble_of(redis_errors.ConnectionError(alert)).hint
    assert hint is not None
    assert "ssl_certfile" in hint


class ProxiedClient:
    """A proxy without scripts ends the connection at the first one."""

    async def execute_command(self, *args: Any) -> Any:
        raise redis_errors.ConnectionError("Connection closed by server.")

    def pipeline(self, transaction: Any = True) -> Any:
        raise AssertionError("each command goes alone")

    async def aclose(self) -> None: ...


async def test_a_proxy_that_lacks_commands_is_named_as_a_cause() -> None:
    with pytest.raises(StoreUnavailable) as raised:
        await check_server(ProxiedClient(), "k", "redis://r", "cache", within=LONG_S)
    assert "closed by server; check the server" in str(raised.value)
    assert "a proxy that lacks its commands" in str(raised.value)
