"""The pytest plugin, in a project of its own and a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
APP = (ROOT / "cli" / "shardbus_cli" / "template" / "app.py").read_text()
TESTS = """
import asyncio

import pytest
from hypothesis import given, settings, strategies

from app import Counter
from shardbus.testing import EntityProbe


async def test_runs_in_virtual_time(shardbus_cluster, shardbus_client):
    assert len(shardbus_cluster.nodes) == 3
    began = shardbus_cluster.now
    await asyncio.sleep(300)
    assert shardbus_cluster.now - began >= 300
    assert await shardbus_client.ref(Counter, "a").add(2) == 2


@pytest.mark.shardbus(nodes=1, settings={"sharding.passivate_after": 5})
async def test_has_the_arguments_of_its_mark(shardbus_cluster, shardbus_client):
    await shardbus_client.ref(Counter, "a").add(2)
    [node] = shardbus_cluster.nodes
    await asyncio.sleep(20)
    assert node.entities(Counter) == []


def test_needs_no_loop(shardbus_cluster, shardbus_client):
    assert shardbus_cluster.run(shardbus_client.ref(Counter, "a").add()) == 1


async def test_fails(shardbus_cluster, shardbus_client):
    assert await shardbus_client.ref(Counter, "a").add() == 2


@given(strategies.integers(0, 5))
@settings(max_examples=3, deadline=None)
async def test_of_hypothesis(count):
    async with EntityProbe(Counter, "a") as probe:
        assert await probe.ask("add", count) == count


async def test_without_a_fixture():
    async with EntityProbe(Counter, "a") as probe:
        assert await probe.ask("add", 2) == 2


class TestMethods:
    async def test_in_a_class(self, tmp_path):
        await asyncio.sleep(0)
        assert tmp_path.is_dir()


async def test_fails_without_a_fixture():
    await asyncio.sleep(0)
    raise LookupError("in the test")


@pytest.mark.anyio
async def test_of_another_plugin():
    raise AssertionError("this plugin runs it")
"""

PASTED = """
from app import Counter
from shardbus.testing import TestCluster
from app import bus


async def test_pasted():
    async with TestCluster(bus, nodes=2) as cluster:
        assert await cluster.client().ref(Counter, "a").add(2) == 2
"""


def run(folder: Path, *options: str) -> str:
    """Run pytest in this folder, with the plugin and without the plugins of this project's
    tests."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "cli")))
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-p", "pytest_shardbus", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-o", "pythonpath=.", *options],
        cwd=folder, env=environment, text=True, check=False, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_app.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text('[tool.shardbus]\napp = "app:bus"\n')
    return tmp_path


def test_a_project_gets_a_cluster_in_virtual_time(project: Path) -> None:
    said = run(project, "-rA", "--shardbus-seed", "8", "-W", "ignore")
    passed = ["runs_in_virtual_time", "has_the_arguments_of_its_mark", "needs_no_loop"]
    passed += ["without_a_fixture", "of_hypothesis"]
    for name in passed:
        assert f"PASSED test_app.py::test_{name}" in said, said
    assert "FAILED test_app.py::test_fails" in said
    assert "seed 8 repeats this run: TestCluster(demo, nodes=3, seed=8)" in said
    assert "FAILED test_app.py::test_fails_without_a_fixture - LookupError: in the test" in said
    assert "this plugin runs it" not in said.replace(TESTS, "")


@pytest.mark.long
def test_a_pasted_test_runs_beside_pytest_asyncio_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_pasted.py").write_text(PASTED)
    for mode in ("strict", "auto"):
        said = run(tmp_path, "-p", "pytest_asyncio.plugin", "-o", f"asyncio_mode={mode}")
        assert "1 passed" in said, said
        assert "arning" not in said, said


VIRTUAL = """
import asyncio

import pytest


@pytest.fixture
def began(shardbus_cluster):
    return shardbus_cluster.now


async def test_in_a_function(shardbus_cluster, began):
    await asyncio.sleep(5)
    assert shardbus_cluster.now - began >= 5


@pytest.mark.asyncio
async def test_with_a_mark(shardbus_cluster, began):
    await asyncio.sleep(5)
    assert shardbus_cluster.now - began >= 5


class TestMethods:
    @pytest.mark.parametrize("seconds", [5])
    async def test_in_a_class(self, shardbus_cluster, began, seconds):
        await asyncio.sleep(seconds)
        assert shardbus_cluster.now - began >= seconds


async def test_fails(shardbus_cluster):
    await asyncio.sleep(5)
    raise LookupError("in the test")
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_test_of_a_cluster_runs_in_virtual_time_beside_pytest_asyncio(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "test_virtual.py").write_text(VIRTUAL)
    (tmp_path / "pyproject.toml").write_text('[tool.shardbus]\napp = "app:bus"\n')
    said = run(tmp_path, "-p", "pytest_asyncio.plugin", "-o", f"asyncio_mode={mode}")
    assert "1 failed, 3 passed" in said, said
    assert "FAILED test_virtual.py::test_fails - LookupError: in the test" in said
    assert "repeats this run: TestCluster" in said
    assert "arning" not in said, said


def test_an_async_test_without_shardbus_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("async def test_it(): ...\n")
    assert "1 passed" not in run(tmp_path)


@pytest.mark.long
def test_a_project_without_an_application_learns_what_to_write(project: Path) -> None:
    (project / "pyproject.toml").unlink()
    said = run(project, "-k", "needs_no_loop")
    assert "or write a fixture shardbus_bus in conftest.py" in said, said
    assert "Traceback" not in said


def test_pytest_does_not_import_shardbus_before_a_test_needs_it(project: Path) -> None:
    (project / "test_app.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'shardbus' not in sys.modules\n"
    )
    assert "1 passed" in run(project)
