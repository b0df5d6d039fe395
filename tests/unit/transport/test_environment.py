"""A process's view of its surroundings."""

from __future__ import annotations

from pathlib import Path

from shardbus.transport.environment import memory_limit


def limit(folder: Path, **files: str) -> int:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="ascii")
    return memory_limit([str(folder / name) for name in ("v2", "v1")])


def test_S3_20_a_container_may_use_less_memory_than_the_machine_has(tmp_path: Path) -> None:
    machine = memory_limit([])
    assert machine > 1 << 20
    assert limit(tmp_path) == machine, "no container"
    assert limit(tmp_path, v2="max\n") == machine
    assert limit(tmp_path, v2="max\n", v1=f"{2**62}\n") == machine
    assert limit(tmp_path, v2="1048576\n") == 1 << 20
    assert limit(tmp_path, v2="0\n", v1="2097152\n") == 2 << 20
