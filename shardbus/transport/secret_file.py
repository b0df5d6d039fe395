"""The file with a cluster's secret: who has it may connect, read and command everything.

    # comments and empty lines are ignored
    d1c0...ff    64 hexadecimal digits: the secret in use
    0a7e...13    an older one, which nodes still accept while the secret is rotated

The first secret is the newest. A node listens under it, accepts peers that have any of them, and
connects with each in turn. So a rotation has three steps, each complete before the next: put a new
secret in front, in the file of every machine; let the nodes read it again; remove the old one, and
let the nodes read it again.

The file must be private: no permission for other users, and none for the group, except that a file
of root may be readable by its group, as mounted secrets are. A file is written beside its final
place and renamed, so that a reader never sees half of it.

No error has a part of a secret: the number of the line says where the mistake is.

Source: docs/how-to/keys.md.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

from shardbus.errors import ConfigError
from shardbus.quantities import counted

SECRET_BYTES = 32
SECRETS_MAX = 4
"""More than two are only needed if rotations overlap."""
FILE_BYTES_MAX = 4096
HEAD = "# The secret of a shardbus cluster: keep it private. The first one is in use.\n"


def new_secret() -> bytes:
    """Draw a secret."""
    return secrets.token_bytes(SECRET_BYTES)


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets in a file, the newest first.

    Raises:
        ConfigError: the file cannot be read, others may read it, or it is malformed.
    """
    return parse_secrets(read_private(path, "the cluster's secret"), str(path))


def read_private(path: Path, what: str) -> str:
    """Return the text of a file that only this user may read. `what` it holds is for the error.

    Raises:
        ConfigError: it cannot be read, is no file, is too large, or others may read it.
    """
    try:
        with path.open("rb") as file:
            check_private(path, os.fstat(file.fileno()), what)
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {str(path)!r} with {what}", hint="make one with `shardbus keys new`"
        ) from None
    except OSError as failed:
        raise ConfigError(
            f"{str(path)!r}, the file with {what}, cannot be read: {failed.strerror}",
            hint="check its owner and mode",
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{str(path)!r} is too large for {what}", hint="name another file")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{str(path)!r} has more than ASCII", hint="name another file") from None


def check_private(path: Path, status: os.stat_result, what: str) -> None:
    """Refuse a file that other users may read or write.

    Raises:
        ConfigError: it is no regular file, or its mode gives others a permission.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{str(path)!r} is no file", hint=f"name the file with {what}")
    mode = stat.S_IMODE(status.st_mode)
    allowed = 0o640 if status.st_uid == 0 and os.geteuid() != 0 else 0o600
    if mode & 0o077 & ~allowed:
        raise ConfigError(
            f"{str(path)!r}, the file with {what}, has mode {mode:04o}: other users may use it",
            hint=f"chmod 600 {path}",
        )


def parse_secrets(text: str, where: str) -> tuple[bytes, ...]:
    """Return the secrets in the text of a file.

    Raises:
        ConfigError: a line is no secret, or there are none, too many, or two that are equal.
    """
    listed: list[bytes] = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            secret = bytes.fromhex(word)
        except ValueError:
            secret = b""
        if len(secret) != SECRET_BYTES or len(word) != 2 * SECRET_BYTES:
            raise ConfigError(
                f"line {number} of {where!r} is no secret of {2 * SECRET_BYTES} hexadecimal digits",
                hint="make one with `shardbus keys new`",
            )
        if secret in listed:
            raise ConfigError(f"line {number} of {where!r} has the same secret as a line before")
        listed.append(secret)
    if not 0 < len(listed) <= SECRETS_MAX:
        raise ConfigError(
            f"{where!r} has {counted(len(listed), 'secret')}, expected 1 to {SECRETS_MAX}",
            hint="make one with `shardbus keys new`",
        )
    return tuple(listed)


def write_private(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file that only this user may read. `replace`: an existing one is replaced at once, as
    a whole.

    Raises:
        ConfigError: the file exists already, or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(fd, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                os.replace(draft, path)
            else:
                os.link(draft, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                draft.unlink()
    except FileExistsError:
        raise ConfigError(
            f"{str(path)!r} exists already", hint="name another file, or remove it"
        ) from None
    except OSError as failed:
        raise ConfigError(f"{str(path)!r} cannot be written: {failed.strerror}") from None


def secrets_text(listed: Sequence[bytes]) -> str:
    """Return the text of a file with these secrets."""
    return HEAD + "".join(f"{secret.hex()}\n" for secret in listed)
