"""Create the tables of the PostgreSQL store, and check that the server will not lose data and that
its user has the permissions that the store needs.

At the start, a server that may lose acknowledged writes in a crash is refused; the error names the
setting of the server. So is a user without the rights, with the statement that gives them. One that
takes no writes at the moment is accepted, because its data can be read; the first write then fails
with the cause.

Settings change while the server runs, and a failover brings another server. So the check of the
settings is repeated every `REPEAT_S`. A fault found then does not stop a node that runs; the log
and `shardbus doctor` name it.

Source: N.7; docs/guarantees.md.
"""

from __future__ import annotations

from typing import Any

import asyncpg  # type: ignore[import-untyped]

from shardbus.errors import ConfigError
from shardbus.store import postgres_statements as sql
from shardbus.store.postgres_errors import ServerTrouble, hidden_rows
from shardbus.store.postgres_journal_statements import TABLES as JOURNAL_TABLES
from shardbus.store.postgres_journals import prepare_journals
from shardbus.store.postgres_urls import PostgresConnection
from shardbus.store.trouble import Trouble

OLDEST = 120_000
REPEAT_S = 30.0


async def prepare(connection: PostgresConnection, schema: str, anew: bool = False) -> bool:
    """Create the tables that are missing. Returns whether any was. `anew`: some are known to be
    missing. May run beside others that do the same.

    Raises:
        ServerTrouble: the tables belong to a newer shardbus, the user may not create them, or the
        server hides their rows.
    """
    version = None if anew else await _version(connection, schema)
    if version is None:
        await _check_rows(connection, schema)
        try:
            exists = await connection.fetch(sql.HAS_SCHEMA, schema)
            create = "" if exists else f'{sql.CREATE_SCHEMA}"{schema}";'
            await connection.execute((sql.CREATE % create).replace("@", f'"{schema}".'))
            await prepare_journals(connection, schema)
        except asyncpg.InsufficientPrivilegeError as error:
            what = f"refuses to create the tables: {error}"
            raise ServerTrouble(Trouble(what, await _remedy(connection, schema))) from None
        return True
    if version > sql.SCHEMA_VERSION:
        what = f"has tables of format {version}, this shardbus knows {sql.SCHEMA_VERSION}"
        hint = "upgrade shardbus, or name another schema: ?schema=NAME"
        raise ServerTrouble(Trouble(what, hint))
    await prepare_journals(connection, schema)
    return False


async def _version(connection: PostgresConnection, schema: str) -> int | None:
    """Return the version of the tables, None if there are none."""
    try:
        rows = await connection.fetch(sql.VERSION.text(schema))
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return None
    except asyncpg.InsufficientPrivilegeError as error:
        what = f"refuses this user (42501): {error}"
        raise ServerTrouble(Trouble(what, await _grants(connection, schema))) from None
    return max((row["number"] for row in rows), default=None)


async def _check_rows(connection: PostgresConnection, schema: str) -> None:
    """Check that the server shows all rows of the tables to this user. A policy would hide some
    from reads, without an error: a journal would look empty.

    Raises:
        ServerTrouble: it does not.
    """
    tables = [*sql.TABLES, *JOURNAL_TABLES, "version"]
    [row] = await connection.fetch(sql.HIDDEN_ROWS, schema, tables)
    if row["names"]:
        raise ServerTrouble(hidden_rows(f"hides rows of {row['names']} from this user"))


async def _remedy(connection: PostgresConnection, schema: str) -> str:
    """Return the statement that lets the user create the tables."""
    [row] = await connection.fetch("SELECT quote_ident(current_user) AS name")
    user = row["name"]
    if await connection.fetch(sql.HAS_SCHEMA, schema):
        return f"run as its owner: GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}"
    return f"run as the owner of the database: CREATE SCHEMA {schema} AUTHORIZATION {user}"


async def _grants(connection: PostgresConnection, schema: str) -> str:
    """Return the statements that let the user work with the tables."""
    [row] = await connection.fetch("SELECT quote_ident(current_user) AS name")
    user = row["name"]
    return (
        f"run as the owner: GRANT USAGE ON SCHEMA {schema} TO {user};"
        f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
    )


async def check_server(
    connection: PostgresConnection, schema: str, shown: str, durability: str
) -> None:
    """Check the settings of the server and the rights of the user.

    Raises:
        ConfigError: the server is unfit, or refuses the user.
        ServerTrouble: the server hides rows.
    """
    await _check_rows(connection, schema)
    [row] = await connection.fetch(sql.SETTINGS.source, schema)
    judge(row, shown, durability)
    lacks = await connection.fetch(sql.RIGHTS.source, schema, [*sql.TABLES, *JOURNAL_TABLES])
    if lacks:
        raise ConfigError(
            f"store.url: {shown} refuses this user {lacks[0]['may']} on {lacks[0]['name']}",
            hint=await _grants(connection, schema),
        )


def judge(row: Any, shown: str, durability: str) -> None:
    """Check the settings of a server.

    Raises:
        ConfigError: the server is unfit; the message names the setting.
    """
    if row["version"] < OLDEST:
        raise ConfigError(
            f"store.url: {shown} is PostgreSQL {row['version_text']}, shardbus needs"
            f" {OLDEST // 10_000} or later"
        )
    if row["encoding"] != "UTF8":
        raise ConfigError(
            f"store.url: the database of {shown} has the encoding {row['encoding']}",
            hint="create one with ENCODING 'UTF8' TEMPLATE template0",
        )
    if durability == "cache":
        return
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        if row[setting] == "off":
            raise ConfigError(
                f"store.url: {shown} may lose acknowledged writes in a crash: its {setting} is off",
                hint=f"set {setting} to on, or accept the loss with ?durability=cache",
            )
    if row["unlogged"]:
        raise ConfigError(
            f"store.url: {shown} loses these tables in a crash: {row['unlogged']}",
            hint="ALTER TABLE ... SET LOGGED, or accept the loss with ?durability=cache",
        )
