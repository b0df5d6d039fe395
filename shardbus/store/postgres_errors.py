"""The meaning of an error of a PostgreSQL server or of the client library for a call: whether to
send it again, whether the server may have run it, and the remedy of an operator.

| SQLSTATE | meaning | the call |
|---|---|---|
| `25006` | a standby, or read only by setting | is sent again over a new connection |
| `57P03` | starts, stops or recovers | the same |
| `57P01` `57P02` `57P05` | ended the connection: it stops, or crashed | the same; may have run |
| `08...`, no answer | no connection | the same; may have run |
| `53300` | `max_connections` is reached | is sent again |
| `40001` `40P01` `55P03` `57014` | gave way to another statement, or was cancelled | the same |
| `42P01` `3F000` | the tables are gone | is sent again, once they are created anew |
| `53100` `53200` | the disk or the memory is full | fails at once |
| `55000` | the database takes no connections, as during its restore | is sent again |
| `28...` | the password, or the user, is not accepted | fails at once |
| `3D000` | there is no such database | fails at once |
| `42501` | the user may not use a table | fails at once |

A statement that fails has written nothing, because it is one transaction: only an answer that was
lost leaves it in doubt.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import asyncpg  # type: ignore[import-untyped]

from shardbus.store.trouble import Trouble

STANDBY = Trouble(
    "is a standby and read only (25006)",
    "name the primary, or all servers: postgresql://host1,host2/db",
    again=True,
)
READ_ONLY = Trouble(
    "takes no writes: default_transaction_read_only is on (25006)",
    "turn it off, or name the primary",
    again=True,
)
_STARTS = Trouble("starts, stops or recovers (57P03)", "wait until it is up", again=True)
_ENDED = Trouble(
    "ended the connection (57P01)", "check the server's log", again=True, definite=False
)
_MANY = Trouble(
    "has too many connections (53300)",
    "raise max_connections, put PgBouncer in front, or lower ?connections= of store.url",
    again=True,
)
_GAVE_WAY = Trouble("cancelled a statement (57014, 40P01)", "see its log", again=True)
_CONCURRENT = Trouble(
    "cancelled a statement for another one (40001)",
    "it is tried again; fewer are with default_transaction_isolation = 'read committed'",
    again=True,
)
_DISK = Trouble("has a full disk (53100)", "free the server's disk; its log names the file")
_MEMORY = Trouble("is out of memory (53200)", "see its log")
_USER = Trouble(
    "refuses this user or its password (28P01, 28000)",
    "give store.url the present user and password, and check pg_hba.conf",
)
_STATES = {
    "25006": STANDBY,
    "57P03": _STARTS,
    "57P01": _ENDED,
    "57P02": _ENDED,
    "57P05": _ENDED,
    "53300": _MANY,
    "40001": _CONCURRENT,
    "40P01": _GAVE_WAY,
    "55P03": _GAVE_WAY,
    "57014": _GAVE_WAY,
    "53100": _DISK,
    "53200": _MEMORY,
    "28P01": _USER,
    "28000": _USER,
}
TABLES_GONE = ("42P01", "3F000")


def hidden_rows(what: str) -> Trouble:
    """Return the meaning of row-level security that applies to the user."""
    hint = "ALTER TABLE ... DISABLE ROW LEVEL SECURITY, or give the user BYPASSRLS"
    return Trouble(f"{what} (row-level security)", hint)


class ServerTrouble(Exception):
    """A server that was reached, and cannot be used."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.what)
        self.trouble = trouble


def trouble_of(error: Exception) -> Trouble:
    """Return the meaning of the error."""
    if isinstance(error, ServerTrouble):
        return error.trouble
    state = str(getattr(error, "sqlstate", None) or "")
    text = " ".join(str(error).split()).rstrip(".")
    if state in _STATES:
        return _STATES[state]
    if state == "3D000":
        return Trouble(f"has no such database: {text}", "create it, or name another in store.url")
    if state == "42501":
        if "row-level security" in text:
            return hidden_rows(f"refuses this user (42501): {text}")
        hint = "the user needs USAGE on the schema and all rights on its tables"
        return Trouble(f"refuses this user (42501): {text}", hint)
    if state == "55000":
        hint = "see its log, and ALTER DATABASE ... ALLOW_CONNECTIONS true if it takes none"
        return Trouble(f"is not ready (55000): {text}", hint, again=True)
    if state in TABLES_GONE:
        return Trouble(f"has lost the tables of the store: {text}", again=True)
    if "SSL" in text or "certificate" in text:
        hint = "check sslmode, sslrootcert, and the host name in the server's certificate"
        return Trouble(f"cannot be trusted: {text}", hint, again=True)
    if isinstance(error, asyncpg.InternalClientError):
        text = "the connection broke off"  # The client's own text names the states of its parser.
    lost = isinstance(error, OSError | asyncpg.InterfaceError | asyncpg.InternalClientError)
    if lost or state.startswith("08"):
        what = f"does not respond: {text}" if text else "does not respond"
        return Trouble(what, "check the server and the network", again=True, definite=False)
    definite = bool(state)
    return Trouble(f"answers with an error: {text or repr(error)}", definite=definite)


def ends_connection(error: Exception) -> bool:
    """True if the connection must not be used any more."""
    if not isinstance(error, asyncpg.PostgresError):
        return True
    state = str(getattr(error, "sqlstate", None) or "")
    return state[:2] in ("08", "25", "57") or state in TABLES_GONE
