"""The keys of a secret, and which of them a connection is tried with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shardbus.errors import ConfigError
from shardbus.transport.secret_file import secrets_text, write_private
from shardbus.transport.zmq import curve
from shardbus.transport.zmq.curve import (
    PAUSE_MAX_S,
    ROUNDS,
    SILENT,
    KeyFallback,
    Keyring,
    derive,
    reason_for,
)

ONE, TWO, THREE = (bytes([n]) * 32 for n in (1, 2, 3))


def keep(path: Path, *secrets: bytes) -> None:
    write_private(path, secrets_text(secrets), replace=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.secret"
    keep(path, TWO, ONE)
    return path


def test_the_keys_of_a_secret_never_change() -> None:
    """Nodes of different builds must agree."""
    keys = derive(bytes(range(32)))
    assert keys.server.public == b"zJr19lMrEGs4fE54XX5^?%?c:3[aRVeS-Z@+0{^&"
    assert keys.node.public == b"PSTTVzLK2d<*V8gm)NP[mjH%BAM2=5h$Y!}WC?Ep"
    assert keys.fingerprint == "c79544fa4d66e9ae"


def test_every_key_of_every_secret_is_another() -> None:
    pairs = [pair for s in (ONE, TWO) for pair in (derive(s).server, derive(s).node)]
    assert len({p.public for p in pairs} | {p.secret for p in pairs}) == 8


def test_no_repr_shows_a_secret_key(path: Path) -> None:
    ring = Keyring(path)
    shown = repr(ring) + repr(ring.keys) + repr(ring.__dict__) + repr(KeyFallback(ring))
    for keys in ring.keys:
        assert keys.server.secret.decode() not in shown
        assert keys.node.secret.decode() not in shown
    assert ONE.hex() not in shown


def test_a_keyring_knows_the_peers_of_all_its_secrets_and_no_other(path: Path) -> None:
    ring = Keyring(path)
    assert ring.newest == derive(TWO)
    assert ring.user_of(derive(ONE).node.public) == f"secret {derive(ONE).fingerprint}"
    assert ring.user_of(derive(TWO).node.public) == f"secret {derive(TWO).fingerprint}"
    assert ring.user_of(derive(THREE).node.public) is None
    assert ring.user_of(derive(TWO).server.public) is None
    keep(path, TWO)
    assert ring.reload() is True
    assert ring.user_of(derive(ONE).node.public) is None
    assert ring.reload() is False


def test_a_file_that_is_spoiled_later_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ring = Keyring(path)
    keep(path, THREE)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="other users"):
        ring.reload()
    assert ring.reload_if_changed() is False
    assert ring.newest == derive(TWO)
    assert caplog.text.count("the keys stay as they were") == 1
    assert ring.reload_if_changed() is False  # it is not read again until it changes again
    assert caplog.text.count("the keys stay as they were") == 1
    keep(path, THREE)
    assert ring.reload_if_changed() is True
    assert ring.newest == derive(THREE)
    path.unlink()
    assert ring.reload_if_changed() is False


def test_no_path_is_no_keyring() -> None:
    assert Keyring.at("") is None


def test_libzmq_must_be_able_to_encrypt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve.zmq, "has", lambda what: False)
    with pytest.raises(ConfigError, match="cannot encrypt"):
        Keyring(path)


# Attempts


def test_every_key_is_tried_before_a_pause_that_grows(path: Path) -> None:
    choice = KeyFallback(Keyring(path))
    new, old = derive(TWO), derive(ONE)
    tried, pauses = [choice.current], []
    for _ in range(2 * ROUNDS + 1):
        pauses.append(choice.failed(errno.EPIPE))
        tried.append(choice.current)
    assert tried == [new, old] * (ROUNDS + 1)
    assert pauses[::2] == [0.0] * (ROUNDS + 1)
    assert pauses[1::2] == sorted(pauses[1::2])
    assert pauses[1] > 0
    for _ in range(200):
        assert choice.failed(errno.EPIPE) <= PAUSE_MAX_S


def test_a_handshake_without_an_answer_proves_nothing_about_keys(path: Path) -> None:
    choice = KeyFallback(Keyring(path))
    first = choice.current
    for value in SILENT * 10:
        assert 0 < choice.failed(value) <= PAUSE_MAX_S
        assert choice.current == first
    assert not choice.hopeless()
    assert not choice.hopeless(curve.DENIED)


def test_only_many_failures_with_every_key_mean_that_secrets_differ(path: Path) -> None:
    choice = KeyFallback(Keyring(path))
    hopeless = []
    for _ in range(2 * ROUNDS):
        choice.failed(errno.EPIPE)
        hopeless.append(choice.hopeless())
    assert hopeless == [False] * (2 * ROUNDS - 1) + [True]
    choice.succeeded()
    assert not choice.hopeless()


def test_the_keys_that_worked_are_the_first_to_try_again(path: Path) -> None:
    choice = KeyFallback(Keyring(path))
    choice.failed(errno.EPIPE)
    choice.succeeded()
    assert choice.current == derive(ONE)
    choice.failed(errno.EPIPE)
    assert choice.current == derive(TWO)


def test_a_failure_finds_a_file_that_has_changed_meanwhile(path: Path) -> None:
    ring = Keyring(path)
    choice, other = KeyFallback(ring), KeyFallback(ring)
    for _ in range(2 * ROUNDS):
        choice.failed(errno.EPIPE)
    keep(path, THREE, TWO)
    os.utime(path, ns=(1, 1))
    assert choice.failed(errno.EPIPE) == 0.0
    assert choice.current == derive(THREE)
    assert not choice.hopeless()
    assert other.failed(errno.EPIPE) == 0.0  # and so does every other connection
    assert other.current == derive(THREE)


def test_without_a_keyring_there_are_no_keys_and_still_an_end() -> None:
    choice = KeyFallback(None)
    for _ in range(ROUNDS):
        assert choice.current is None
        assert choice.failed(errno.EPIPE) > 0
    assert choice.hopeless(0x11000002)
    assert not choice.hopeless()  # the other side may just have ended
    for _ in range(ROUNDS):
        choice.failed(errno.EPIPE)
    assert choice.hopeless()


@pytest.mark.parametrize(
    ("value", "keyed", "text"),
    [
        (0x11000002, True, "has no secret"),
        (0x11000002, False, "this process has none"),
        (0, False, "this process has none"),
        (400, True, "does not know this process's key"),
        (32, True, "secret differs"),
        (0, True, "secret differs"),
    ],
)
def test_the_reason_says_what_to_do(value: int, keyed: bool, text: str) -> None:
    assert text in reason_for(value, keyed=keyed)
