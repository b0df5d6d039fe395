"""Build the wheel of an earlier version from the history of this repository, and print its path.

    python -m tests.supply.neighbour          # or: make test-upgrade
    python -m tests.supply.neighbour v0.1.0   # or: make test-upgrade FROM=v0.1.0

Without a name it is the last tag. Before the first tag it is the first commit of the present
membership protocol: the oldest build that every later one of the same protocol works with. A wheel
that was built is kept in `.venv/neighbours` and not built again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / ".venv" / "neighbours"
PROTOCOL = ("-G^PROTOCOL = ", "--", "shardbus/membership/messages.py")
LIMIT_S = 600.0


class NoHistory(Exception):
    """This folder has no history to build an earlier version from."""


def git(*arguments: str, root: Path = ROOT) -> bytes:
    """Run git in a repository; return its output.

    Raises:
        NoHistory: git is missing, or has refused, with its reason.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=LIMIT_S, check=False
        )
    except OSError as e:
        raise NoHistory(f"git: {e}") from None
    if done.returncode:
        raise NoHistory(done.stderr.decode(errors="replace").strip() or f"git {arguments[0]}")
    return done.stdout


def neighbour(name: str = "", root: Path = ROOT) -> str:
    """Return the commit of the version to build: by name, or the default.

    Raises:
        NoHistory: the name is none here, or the history does not reach back to it.
    """
    if name:
        return commit_of(name, root)
    if git("rev-parse", "--is-shallow-repository", root=root).strip() == b"true":
        raise NoHistory("this clone is shallow: `git fetch --unshallow --tags`")
    tags = git("tag", "--merged=HEAD^", "--sort=-creatordate", "--list", "v[0-9]*", root=root)
    if tags:
        return commit_of(tags.split()[0].decode(), root)
    commit = git("log", "-1", "--format=%H", *PROTOCOL, root=root).decode().strip()
    if not commit:
        raise NoHistory("no commit sets the membership protocol")
    return commit


def commit_of(name: str, root: Path = ROOT) -> str:
    """Return the commit that a tag, a branch or an abbreviation names."""
    return git("rev-parse", "--verify", f"{name}^{{commit}}", root=root).decode().strip()


def build(commit: str) -> Path:
    """Build the wheel of a commit, and return its path."""
    folder = WHEELS / commit
    if kept := list(folder.glob("*.whl")):
        return kept[0]
    with tempfile.TemporaryDirectory() as scratch:
        tree, made = Path(scratch, "tree"), Path(scratch, "wheels")
        with tarfile.open(fileobj=BytesIO(git("archive", commit))) as files:
            files.extractall(tree, filter="data")
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--no-deps", "--wheel-dir", str(made), str(tree)],
            check=True, timeout=LIMIT_S, stdout=sys.stderr,
        )  # fmt: skip
        [wheel] = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        kept_as = folder / wheel.name
        kept_as.write_bytes(wheel.read_bytes())
    return kept_as


def main() -> int:
    """Build it; a folder without that history is an error of one line."""
    parser = argparse.ArgumentParser(description="Build the wheel of an earlier version.")
    parser.add_argument("name", nargs="?", default="", help="a tag or a commit")
    try:
        commit = neighbour(parser.parse_args().name)
        print(f"the neighbour is {git('log', '-1', '--format=%h %cs %s', commit).decode().strip()}",
              file=sys.stderr)  # fmt: skip
        print(build(commit))
    except NoHistory as e:
        print(f"no earlier version to build: {e}; or name a wheel: WHEEL=old.whl", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
