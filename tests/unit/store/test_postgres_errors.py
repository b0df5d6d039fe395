"""The meaning of PostgreSQL's and asyncpg's errors for a call, and how a server is judged."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from shardbus.errors import ConfigError
from shardbus.store.postgres_check import judge
from shardbus.store.postgres_errors import READ_ONLY, ServerTrouble, ends_connection, trouble_of


@pytest.mark.parametrize(
    ("error", "says", "again", "definite", "ends"),
    [
        (asyncpg.ReadOnlySQLTransactionError("x"), "standby", True, True, True),
        (asyncpg.CannotConnectNowError("x"), "starts, stops", True, True, True),
        (asyncpg.AdminShutdownError("x"), "ended the connection", True, False, True),
        (asyncpg.ConnectionDoesNotExistError("lost"), "respond: lost", True, False, True),
        (asyncpg.InterfaceError("closed"), "respond: closed", True, False, True),
        (ConnectionResetError(104, "reset"), "respond", True, False, True),
        (TimeoutError(), "does not respond", True, False, True),
        (asyncpg.TooManyConnectionsError("x"), "too many connections", True, True, False),
        (asyncpg.DeadlockDetectedError("x"), "cancelled a statement", True, True, False),
        (asyncpg.QueryCanceledError("x"), "cancelled a statement", True, True, True),
        (asyncpg.UndefinedTableError("gone"), "lost the tables", True, True, True),
        (asyncpg.DiskFullError("x"), "full disk", False, True, False),
        (asyncpg.InvalidPasswordError("x"), "refuses this user or", False, True, False),
        (asyncpg.InvalidCatalogNameError("x"), "no such database", False, True, False),
        (asyncpg.InsufficientPrivilegeError("x"), "refuses this user (42501)", False, True, False),
        (asyncpg.InternalServerError("x\ny."), "an error: x y", False, True, False),
        (ValueError("x"), "an error: x", False, False, True),
        (ServerTrouble(READ_ONLY), "takes no writes", True, True, True),
        (asyncpg.InternalClientError("state 13"), "the connection broke", True, False, True),
        (
            asyncpg.ObjectNotInPrerequisiteStateError("x"),
            "is not ready (55000): x",
            True,
            True,
            False,
        ),
        (OSError("certificate verify failed"), "cannot be trusted", True, True, True),
    ],
)
def test_what_an_error_means(
    error: Exception, says: str, again: bool, definite: bool, ends: bool
) -> None:
    trouble = trouble_of(error)
    assert says in trouble.what
    assert "\n" not in trouble.what
    assert (trouble.again, trouble.definite, ends_connection(error)) == (again, definite, ends)
    if trouble.again and says != "lost the tables":
        assert trouble.hint


FIT: dict[str, Any] = {
    "version": 150_018,
    "version_text": "15.18",
    "encoding": "UTF8",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "unlogged": None,
}


@pytest.mark.parametrize("commit", ["on", "local", "remote_write", "remote_apply"])
def test_a_fit_server_is_taken(commit: str) -> None:
    judge({**FIT, "synchronous_commit": commit}, "postgresql://h", "disk")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fsync": "off"}, "its fsync is off; set fsync to on, or .*durability=cache"),
        ({"full_page_writes": "off"}, "its full_page_writes is off"),
        ({"synchronous_commit": "off"}, "its synchronous_commit is off"),
        ({"unlogged": "entity, home"}, "in a crash: entity, home; ALTER TABLE"),
    ],
)
def test_a_server_that_may_lose_writes_is_refused_unless_that_is_accepted(
    change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        judge({**FIT, **change}, "postgresql://h", "disk")
    judge({**FIT, **change}, "postgresql://h", "cache")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 110_022, "version_text": "11.22"}, "is PostgreSQL 11.22, .* 12 or later"),
        ({"encoding": "LATIN1"}, "encoding LATIN1; create one with ENCODING 'UTF8'"),
    ],
)
def test_a_server_that_is_too_old_or_cannot_hold_every_id_is_refused(
    change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        judge({**FIT, **change}, "postgresql://h", "cache")
