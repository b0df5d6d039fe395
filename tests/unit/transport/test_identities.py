"""Whose key is whose: the file of identities, and the names that a HELLO may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from shardbus.ids import Address, NodeId
from shardbus.transport.identities import (
    Identity,
    authorize_by,
    public_key,
    read_allowed,
    read_key,
)
from shardbus.transport.permissions import Permissions, Role, client_name, uid_of
from shardbus.transport.secret_file import write_private
from shardbus.transport.zmq.curve import Keyring, derive
from shardbus.wire.batch import Hello
from tests.records import replace

SECRET = b"0123456789abcdef"
UID = uid_of(SECRET)
KEY = "a" * 40
HERE = NodeId("10.0.0.1", 7355, UID)
NODE = Identity("n1", b"n" * 40, Role.NODE, ("10.0.0.1:7355",))
USER = Identity("api", b"c" * 40, Role.CLIENT, ("10.0.3.0/24",), frozenset({"order"}))
FREE = Identity("free", b"f" * 40, Role.CLIENT)
DIRECTORY = {entry.name: entry for entry in (NODE, USER, FREE)}


def hello(node: NodeId | None, name: str = "") -> Hello:
    user_name = name or (str(node) if node else client_name(UID))
    return replace_secret(Hello("shop", user_name, node, 1))


def replace_secret(plain: Hello) -> Hello:
    return Hello(plain.cluster, plain.name, plain.node, plain.session, False, SECRET)


@pytest.mark.parametrize(
    ("user", "node", "expected"),
    [
        ("n1", HERE, Permissions(Role.NEWCOMER)),
        ("n1", None, Permissions(Role.CLIENT)),
        ("api", None, Permissions(Role.CLIENT, frozenset({"order"}))),
        ("free", None, Permissions(Role.CLIENT)),
        ("n1", HERE._replace(host="10.0.0.2"), "may not have the address 10.0.0.2:7355"),
        ("n1", HERE._replace(port=1), "may not have the address 10.0.0.1:1"),
        ("api", HERE, "api is a client"),
        ("free", HERE, "free is a client"),
        ("gone", None, "not in security.allowed"),
        (None, HERE, "not in security.allowed"),
        ("", None, "not in security.allowed"),
        ("n1", HERE._replace(uid=UID ^ 1), "not proved"),
    ],
)
def test_the_identity_of_a_connection_decides(
    user: str | None, node: NodeId | None, expected: Permissions | str
) -> None:
    got = authorize_by(DIRECTORY, hello(node), user)
    if isinstance(expected, str):
        assert isinstance(got, str)
        assert expected in got
    else:
        assert got == expected


def test_a_client_uses_only_its_types() -> None:
    assert Permissions(Role.CLIENT, frozenset({"order"})).may_use("order")
    assert not Permissions(Role.CLIENT, frozenset({"order"})).may_use("cart")
    assert not Permissions(Role.CLIENT, frozenset()).may_use("order")
    assert Permissions(Role.CLIENT).may_use("cart")


def test_where_a_key_may_be_used() -> None:
    assert USER.may_connect_from("10.0.3.7")
    assert not USER.may_connect_from("10.0.4.7")
    assert not USER.may_connect_from("")
    assert FREE.may_connect_from("anywhere")
    assert NODE.may_connect_from("10.9.9.9")
    assert replace(NODE, addresses=("10.0.0.1",)).may_be(Address("10.0.0.1", 9))
    assert replace(NODE, addresses=()).may_be(Address("x", 9))


GOOD = f"""
[n1]
key = "{"n" * 40}"
role = "node"
addresses = ["10.0.0.1:7355"]
[api]
key = "{"c" * 40}"
role = "client"
types = ["order"]
addresses = ["10.0.3.0/24"]
[free]
key = "{"f" * 40}"
role = "client"
"""


def test_a_file_of_identities(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    path.write_text(GOOD)
    assert read_allowed(path) == {identity.key: identity for identity in DIRECTORY.values()}
    path.write_text("")
    assert read_allowed(path) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a]\nrole = 'client'", "40 characters"),
        (f"[a]\nkey = '{KEY}'", "role is client, node or store"),
        (f"[a]\nkey = '{KEY}'\nrole = 'admin'", "role is client, node or store"),
        (f"[a]\nkey = '{KEY}x'\nrole = 'node'", "40 characters"),
        (f"[a]\nkey = '{KEY}'\nrole = 'node'\ntypes = ['x']", "a node may use all types"),
        (f"[a]\nkey = '{KEY}'\nrole = 'client'\ntypes = 'x'", "list of texts"),
        (f"[a]\nkey = '{KEY}'\nrole = 'client'\naddresses = ['x']", "no IP address"),
        (f"[a]\nkey = '{KEY}'\nrole = 'client'\nadmin = true", "is a table of"),
        ("a = 1", "is a table of"),
        (f"[a]\nkey='{KEY}'\nrole='node'\n[b]\nkey='{KEY}'\nrole='client'", "the same key"),
        ("[a", "is not TOML"),
    ],
)
def test_a_malformed_file_of_identities_is_one_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "allowed.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_allowed(path)


def test_a_missing_file_admits_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_allowed(tmp_path / "none")


def test_the_file_of_a_key(tmp_path: Path) -> None:
    server = derive(bytes(32)).server.public.decode()
    path = tmp_path / "own.key"
    write_private(path, f"# own\nkey {'ab' * 32}\nserver {server}\n")
    key = read_key(path)
    assert key.secret == bytes([0xAB]) * 32
    assert key.servers == (server.encode(),)
    assert "ab" * 32 not in repr(key)
    ring = Keyring("", path)
    assert ring.newest.server.public == server.encode()
    assert ring.newest.server.secret == b""
    for number, text in enumerate(
        ("key zz", "server x", "other 1", "key " + "ab" * 32 + "\nkey 1")
    ):
        bad = tmp_path / f"bad{number}"
        write_private(bad, text)
        with pytest.raises(ConfigError, match="is malformed"):
            read_key(bad)
    empty = tmp_path / "empty"
    write_private(empty, "")
    with pytest.raises(ConfigError, match="has no key"):
        read_key(empty)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users"):
        read_key(path)


def test_a_public_key_has_its_length() -> None:
    assert public_key(KEY) == KEY.encode()
    for wrong in (None, 1, "", KEY[:-1], "é" * 40):
        with pytest.raises(ConfigError):
            public_key(wrong)
