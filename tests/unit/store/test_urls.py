"""URLs of stores as text: the default, and the form without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardbus.store.urls import REDIS_SCHEMES, default_url, family, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://bus:hush@h:1/0", "redis://bus:***@h:1/0"),
        ("redis://:hush@h", "redis://:***@h"),
        ("redis://:hu@sh:x@h", "redis://:***@h"),
        ("redis+sentinel://:hush@a:1,b:2/0?master=m&sentinel_password=hush&x=1",
         "redis+sentinel://:***@a:1,b:2/0?master=m&sentinel_password=***&x=1"),
        ("sqlite:////var/bus.db", "sqlite:////var/bus.db"),
    ],
)  # fmt: skip
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


def test_the_default_is_a_file_in_the_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_url("shop") == f"sqlite:///{tmp_path}/shardbus/shop.db"
    assert default_url("a/../b?c#d") == f"sqlite:///{tmp_path}/shardbus/a%2F..%2Fb%3Fc%23d.db"
    long = [default_url("ü" * 128), default_url("ü" * 127 + "u")]
    assert len(set(long)) == 2
    assert all(len(url.rpartition("/")[2]) < 255 for url in long)
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert default_url("shop") == f"sqlite:///{Path.home()}/.local/state/shardbus/shop.db"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///bus.db", "sqlite"), ("bus.db", "sqlite"), ("memory://", "memory"),
        ("etcd://h", "etcd"), *((f"{scheme}://h", "redis") for scheme in REDIS_SCHEMES),
    ],
)  # fmt: skip
def test_the_family_of_a_store(url: str, name: str) -> None:
    assert family(url) == name
