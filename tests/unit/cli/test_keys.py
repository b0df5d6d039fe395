"""`shardbus keys`: files of secrets, which no command prints."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from shardbus.transport.identities import read_allowed, read_key
from shardbus.transport.permissions import Role
from shardbus.transport.secret_file import read_secrets
from shardbus.transport.zmq.curve import KeyPair, Keyring
from shardbus_cli import main as cli


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SHARDBUS_SECURITY__SECRET", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cluster.secret"


def test_a_new_secret_is_private_and_never_replaces_one(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["keys", "new"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    held = read_secrets(file)
    assert len(held) == 1
    assert cli.run(["keys", "new"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.run(["keys", "new", "--if-missing"]) == 0
    assert read_secrets(file) == held
    file.chmod(0o644)
    assert cli.run(["keys", "new", "--if-missing"]) == 2
    assert "chmod 600" in capsys.readouterr().err


def test_what_is_shown_is_public(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["keys", "new"])
    cli.run(["keys", "rotate"])
    assert cli.run(["keys", "show", "--json"]) == 0
    shown = capsys.readouterr().out
    rows = json.loads(shown)["secrets"]
    assert [row["use"] for row in rows] == ["in use", "accepted"]
    assert cli.run(["keys", "show"]) == 0
    shown += capsys.readouterr().out
    assert all(row["fingerprint"] in shown for row in rows)
    assert not any(secret.hex() in shown for secret in read_secrets(file))


def test_a_rotation_has_two_steps(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["keys", "new"])
    [old] = read_secrets(file)
    assert cli.run(["keys", "rotate", "--finish"]) == 6
    assert cli.run(["keys", "rotate"]) == 0
    new, kept = read_secrets(file)
    assert kept == old
    assert cli.run(["keys", "rotate"]) == 6
    assert "a rotation is under way" in capsys.readouterr().err
    assert read_secrets(file) == (new, old)
    assert cli.run(["keys", "rotate", "--finish"]) == 0
    assert read_secrets(file) == (new,)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_of_its_own_and_its_entry(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run(["keys", "new"])
    assert cli.run(["keys", "own", "node-1", "node.key"]) == 0
    assert cli.run(["keys", "own", "--client", "--secret", str(file), "api", "api.key"]) == 0
    allowed = tmp_path / "allowed.toml"
    allowed.write_text(capsys.readouterr().out)
    by_name = {entry.name: entry for entry in read_allowed(allowed).values()}
    assert {name: entry.role for name, entry in by_name.items()} == {
        "node-1": Role.NODE,
        "api": Role.CLIENT,
    }
    for name, path in (("node-1", "node.key"), ("api", "api.key")):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600
        assert KeyPair.of(read_key(tmp_path / path).secret).public == by_name[name].key
    assert read_key(tmp_path / "node.key").servers == ()
    assert read_key(tmp_path / "api.key").servers == (Keyring(file).newest.server.public,)
    assert cli.run(["keys", "own", "--client", "api", "other.key"]) == 2
    assert cli.run(["keys", "own", "node-1", "node.key"]) == 2


def test_the_file_of_the_environment_is_the_default(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDBUS_SECURITY__SECRET", str(tmp_path / "other"))
    assert cli.run(["keys", "new"]) == 0
    assert len(read_secrets(tmp_path / "other")) == 1
    assert not file.exists()
