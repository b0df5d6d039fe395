"""Which earlier version `make test-upgrade` builds. That it works beside this one is a test of
`tests/process/test_upgrades.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.supply.neighbour import NoHistory, git, neighbour

WHO = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository whose third commit has set the present protocol, and which has two more."""
    root = tmp_path / "repository"
    file = root / "shardbus" / "membership" / "messages.py"
    file.parent.mkdir(parents=True)
    git("init", "--quiet", root=root)
    for number, text in enumerate(("PROTOCOL = 8", "# a note", "PROTOCOL = 9", "# more", "# end")):
        before = file.read_text() if file.exists() else ""
        kept = before if text.startswith("#") else ""
        file.write_text(f"{kept}{text}\n")
        git("add", ".", root=root)
        git(*WHO, "commit", "--quiet", "-m", f"number {number}", root=root)
    return root


def subject(commit: str, root: Path) -> str:
    return git("log", "-1", "--format=%s", commit, root=root).decode().strip()


def test_without_a_tag_it_is_the_first_build_of_the_present_protocol(history: Path) -> None:
    assert subject(neighbour(root=history), history) == "number 2"
    assert subject(neighbour("HEAD~1", root=history), history) == "number 3"


def test_the_last_tag_before_this_commit_counts(history: Path) -> None:
    git(*WHO, "tag", "v1", "HEAD~4", root=history)
    assert subject(neighbour(root=history), history) == "number 0"
    git(*WHO, "tag", "v2", root=history)
    assert subject(neighbour(root=history), history) == "number 0", "a release and the one before"


def test_a_folder_without_the_history_says_what_to_do(history: Path, tmp_path: Path) -> None:
    shallow = tmp_path / "shallow"
    git("clone", "--quiet", "--depth=1", f"file://{history}", str(shallow), root=history)
    with pytest.raises(NoHistory, match="unshallow"):
        neighbour(root=shallow)
    (tmp_path / "bare").mkdir()
    with pytest.raises(NoHistory, match="not a git repository"):
        neighbour(root=tmp_path / "bare")
    with pytest.raises(NoHistory):
        neighbour("v7", root=history)
