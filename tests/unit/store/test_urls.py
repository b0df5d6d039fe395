"""URLs of stores as text: the default, and the form without secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbus.config.replicas import default_path
from shardbus.errors import ConfigError
from shardbus.store.opening import open_store
from shardbus.store.urls import POSTGRES_SCHEMES, REDIS_SCHEMES, default_url, family, mask_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://bus:hush@h:1/0", "redis://bus:***@h:1/0"),
        ("redis://:hush@h", "redis://:***@h"),
        ("redis://:hu@sh:x@h", "redis://:***@h"),
        ("redis+sentinel://:hush@a:1,b:2/0?master=m&sentinel_password=hush&x=1",
         "redis+sentinel://:***@a:1,b:2/0?master=m&sentinel_password=***&x=***"),
        ("redis://:hu/sh@h:1/0", "redis://:***@h:1/0"),
        ("redis://bus:hu/sh@h:1/0", "redis://bus:***@h:1/0"),
        ("redis://:hu?sh@h:1/0", "redis://:***@h:1/0"),
        ("redis://:hu@s?h@h:1/0?durability=disk", "redis://:***@h:1/0?durability=disk"),
        ("redis://bus:hu%2Fs%40h@h:1/0", "redis://bus:***@h:1/0"),
        ("rediss+cluster://bus:hush@[::1]:1,b:2", "rediss+cluster://bus:***@[::1]:1,b:2"),
        ("redis://h:1/0?password=hush", "redis://h:1/0?password=***"),
        ("redis://h:1/0?password=hu@sh", "redis://h:***@sh"),
        ("redis://h:1/0?hush", "redis://h:1/0?***"),
        ("redis://:hush:6379", "redis://***"),
        ("redis://hu sh", "redis://***"),
        ("hush@h:1", "***"),
        (":hush@h:1", "***"),
        ("postgresql://bus:hu@sh/@a:1,b/db?schema=s&sslmode=require&sslkey=hush",
         "postgresql://bus:***@a:1,b/db?schema=s&sslmode=require&sslkey=***"),
        ("re dis://:hush@h:1", "***"),
        ("etcd://:hu/sh@h/x?token=hush&durability=disk", "etcd://:***@h/x?token=***&durability=disk"),
        ("sqlite:////home/a@b/bus.db?durability=cache", "sqlite:////home/a@b/bus.db?durability=cache"),
        ("bus.db", "bus.db"),
        ("sqlite:////var/bus.db", "sqlite:////var/bus.db"),
    ],
)  # fmt: skip
def test_passwords_are_masked(url: str, shown: str) -> None:
    assert mask_url(url) == shown


SECRET = st.text("ab/?@#:&=%+,[] é", min_size=1, max_size=12).map(lambda s: f"HUSH{s}HUSH")


@given(
    st.sampled_from([*REDIS_SCHEMES, *POSTGRES_SCHEMES, "etcd"]),
    st.sampled_from(["", "bus"]), SECRET,
    st.sampled_from(["h", "h:1", "h:1/0", "h:1/0?durability=disk", "a:1,b:2/0?master=m"]),
)  # fmt: skip
def test_no_part_of_a_password_is_shown_or_in_an_error(
    scheme: str, user: str, secret: str, place: str
) -> None:
    url = f"{scheme}://{user}:{secret}@{place}"
    assert "HUSH" not in mask_url(url)
    try:
        open_store(url, cluster="shop")
        said = ""
    except ConfigError as error:
        said = str(error)
    assert "HUSH" not in said


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
    "place", [lambda: default_url("shop"), lambda: default_path("shop", 7357)], ids=["db", "log"]
)
def test_a_user_without_a_home_is_told_to_name_a_place(
    monkeypatch: pytest.MonkeyPatch, place: Callable[[], object]
) -> None:
    def no_home(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    with pytest.raises(ConfigError, match="no home directory") as refused:
        place()
    assert "store.url" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///bus.db", "sqlite"), ("bus.db", "sqlite"), ("memory://", "memory"),
        ("etcd://h", "etcd"), *((f"{scheme}://h", "redis") for scheme in REDIS_SCHEMES),
        *((f"{scheme}://h", "postgresql") for scheme in POSTGRES_SCHEMES),
    ],
)  # fmt: skip
def test_the_family_of_a_store(url: str, name: str) -> None:
    assert family(url) == name
