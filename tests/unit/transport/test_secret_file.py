"""The file of a cluster's secret: its readers, its content, and texts that no error repeats."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from shardbus.transport.secret_file import (
    FILE_BYTES_MAX,
    SECRETS_MAX,
    check_private,
    new_secret,
    parse_secrets,
    read_secrets,
    secrets_text,
    write_private,
)

ONE, TWO = bytes(range(32)), bytes(range(32, 64))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cluster.secret"


def test_a_file_reads_back_newest_first(path: Path) -> None:
    write_private(path, secrets_text([TWO, ONE]))
    assert read_secrets(path) == (TWO, ONE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_comments_and_empty_lines_are_ignored() -> None:
    assert parse_secrets(f"# x\n\n  {ONE.hex()}  # now\n{TWO.hex()}\n", "f") == (ONE, TWO)


def test_two_secrets_differ() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o610, 0o601, 0o666, 0o777])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    write_private(path, secrets_text([ONE]))
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*chmod 600"):
        read_secrets(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_private_file_is_taken(path: Path, mode: int) -> None:
    write_private(path, secrets_text([ONE]))
    path.chmod(mode)
    assert read_secrets(path) == (ONE,)


@pytest.mark.parametrize(
    ("mode", "owner", "user", "good"),
    [
        (0o640, 0, 1000, True),  # a mounted secret: of root, readable by the group
        (0o440, 0, 1000, True),
        (0o660, 0, 1000, False),
        (0o644, 0, 1000, False),
        (0o640, 1000, 1000, False),
        (0o640, 0, 0, False),
    ],
)
def test_only_a_file_of_root_may_be_readable_by_its_group(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, user: int, good: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, owner, 0, 0, 0, 0))
    if good:
        check_private(path, status, "it")
    else:
        with pytest.raises(ConfigError, match="other users may use it"):
            check_private(path, status, "it")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 secrets, expected 1"),
        ("# only this\n", "0 secrets"),
        (ONE.hex()[:-2], "line 1 of 'f' is no secret"),
        (f"{ONE.hex()}\n{TWO.hex()}ff", "line 2 of 'f' is no secret"),
        ("zz" * 32, "line 1"),
        (ONE.hex()[:32] + " " + ONE.hex()[32:], "line 1"),
        (f"{ONE.hex()}\n{ONE.hex()}", "line 2 of 'f' has the same secret"),
        ("".join(f"{bytes([n]).hex() * 32}\n" for n in range(SECRETS_MAX + 1)), "5 secrets"),
    ],
)
def test_what_is_no_secret_is_refused_without_repeating_it(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_secrets(text, "f")
    for line in filter(None, text.split("\n")):
        assert line.startswith("#") or line[:8] not in str(refused.value)


def test_a_file_is_never_replaced_by_chance(path: Path) -> None:
    write_private(path, secrets_text([ONE]))
    with pytest.raises(ConfigError, match="exists already"):
        write_private(path, secrets_text([TWO]))
    assert read_secrets(path) == (ONE,)
    write_private(path, secrets_text([TWO]), replace=True)
    assert read_secrets(path) == (TWO,)


def test_a_file_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*shardbus keys new"):
        read_secrets(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"cannot be read|is no file"):
        read_secrets(tmp_path)
    big = tmp_path / "big"
    write_private(big, "#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="too large"):
        read_secrets(big)
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\xff\xfe")
    foreign.chmod(0o600)
    with pytest.raises(ConfigError, match="more than ASCII"):
        read_secrets(foreign)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_private(tmp_path / "no" / "folder", "x")
