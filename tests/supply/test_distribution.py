"""The package as an index shows it, and the time to the first answer of a new user."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.ports import free_block
from tests.supply import distribution
from tests.supply.distribution import LINK, ROOT, for_index
from tests.supply.first_answer import block_of_the_tutorial, first_answer

URL = "https://example.org/shardbus"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("written", "with_url", "without"),
    [
        ("[t](docs/a.md#b)", f"[t]({URL}/blob/main/docs/a.md#b)", "t"),
        ("[t](#limits)", "[t](#limits)", "[t](#limits)"),
        ("[t](https://semver.org/)", "[t](https://semver.org/)", "[t](https://semver.org/)"),
        ("![p](docs/p.png)", f"![p]({URL}/raw/main/docs/p.png)", ""),
        ("```sh\n[t](docs/a.md)\n```", "```sh\n[t](docs/a.md)\n```", "```sh\n[t](docs/a.md)\n```"),
    ],
    ids=["file", "section", "elsewhere", "picture", "code"],
)
def test_links_lead_to_the_repository_or_are_words(
    written: str, with_url: str, without: str
) -> None:
    assert for_index(written, URL) == with_url
    assert for_index(written) == without


@pytest.mark.parametrize("url", ["", URL], ids=["without", "with"])
def test_no_link_of_the_packages_page_is_relative(url: str) -> None:
    assert len(LINK.findall(README)) > 5
    targets = [target for _, target in LINK.findall(for_index(README, url))]
    assert [target for target in targets if "://" not in target and target[0] != "#"] == []


def test_addresses_are_those_of_the_repository() -> None:
    table = tomllib.loads(distribution.urls(URL))["project"]["urls"]
    assert {"Homepage", "Source", "Issues", "Documentation", "Changelog"} == table.keys()
    for address in table.values():
        path = address.removeprefix(URL).removeprefix("/blob/main/")
        assert address.startswith(URL)
        assert path in ("", "/issues") or (ROOT / path).is_file()


def test_the_package_says_what_an_index_shows() -> None:
    assert {"name", "dynamic", "description", "readme", "license", "keywords"} <= PROJECT.keys()
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert PROJECT["classifiers"] == list(dict.fromkeys(PROJECT["classifiers"]))
    assert len(PROJECT["description"]) < 200
    assert "pip install" in README


@pytest.mark.long
def test_wheel_and_sdist_have_what_they_need_and_a_new_user_gets_an_answer(tmp_path: Path) -> None:
    sdist, wheel = sorted(distribution.build(tmp_path, URL), key=lambda path: path.suffix)
    with zipfile.ZipFile(wheel) as parts:
        names = parts.namelist()
        [about] = [name for name in names if name.endswith("/METADATA")]
        metadata = message_from_bytes(parts.read(about))
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {
        "shardbus",
        "shardbus_cli",
        "pytest_shardbus",
    }
    assert len(metadata.get_all("Project-URL") or []) == 5
    assert "](docs/" not in str(metadata.get_payload())
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"docs/tutorial.md", "tests/conftest.py", "examples/counter.py", "README.md"} <= inside
    answer, steps = first_answer(wheel, tmp_path, free_block(3))
    assert answer == "10"
    assert list(steps) == ["venv", "pip install", "node start", "ask"]


def test_the_first_file_of_the_tutorial_has_the_application() -> None:
    assert "bus = ShardBus(" in block_of_the_tutorial()
