"""Build the wheel and the sdist of a release, and check them.

    python -m tests.supply.distribution dist                  # or: make dist
    python -m tests.supply.distribution dist --url ADDRESS    # or: make dist URL=ADDRESS

They are built from a copy of the files that git tracks. README becomes the page of the package on
an index, where relative links lead nowhere: with the address of the repository they lead there, and
the package gets its URLs; without it they become plain words, and pictures are left out. `twine
check --strict` and `check-wheel-contents` read the result; their folder is given by --tools.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600.0
LINK = re.compile(r"(?<!!)\[(?P<words>[^\]]+)\]\((?P<target>[^)\s]+)\)")
PICTURE = re.compile(r"!\[(?P<words>[^\]]+)\]\((?P<target>[^)\s]+)\)")
PAGES = {"Documentation": "docs/README.md", "Changelog": "CHANGELOG.md"}


def for_index(readme: str, url: str = "") -> str:
    """Return README as an index shows it: links lead to the repository, or are plain words."""

    def relinked(link: re.Match[str]) -> str:
        target = link["target"]
        if "://" in target or target.startswith("#"):
            return link[0]
        return f"[{link['words']}]({file_at(url, target)})" if url else link["words"]

    def shown(picture: re.Match[str]) -> str:
        target = picture["target"]
        if "://" in target:
            return picture[0]
        return f"![{picture['words']}]({url}/raw/main/{target})" if url else ""

    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [PICTURE.sub(shown, LINK.sub(relinked, part)) for part in parts[::2]]
    return "".join(parts)


def file_at(url: str, path: str) -> str:
    """Return the address of a file of the repository's main branch."""
    return f"{url}/blob/main/{path}"


def urls(url: str) -> str:
    """Return the table of the package's addresses for `pyproject.toml`."""
    rows = {"Homepage": url, "Source": url, "Issues": f"{url}/issues"}
    rows |= {name: file_at(url, path) for name, path in PAGES.items()}
    lines = "".join(f'{name} = "{address}"\n' for name, address in rows.items())
    return f"\n[project.urls]\n{lines}"


def copy_tracked(target: Path) -> None:
    """Copy the files that git tracks, as they are in the work tree."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"],
        capture_output=True, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def prepare(tree: Path, url: str) -> None:
    """Write README and the addresses into a copy of the tree."""
    readme, project = tree / "README.md", tree / "pyproject.toml"
    readme.write_text(for_index(readme.read_text(encoding="utf-8"), url), encoding="utf-8")
    if url:
        project.write_text(project.read_text(encoding="utf-8") + urls(url), encoding="utf-8")


def build(out: Path, url: str = "") -> list[Path]:
    """Build both files into a folder, and return their paths."""
    with tempfile.TemporaryDirectory(prefix="shardbus-dist-") as folder:
        tree = Path(folder)
        copy_tracked(tree)
        prepare(tree, url)
        for old in out.glob("shardbus-*"):
            old.unlink()
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(out.resolve())]
        stable = {"SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", "1577836800")}
        environment = os.environ | stable
        subprocess.run(command, cwd=tree, env=environment, check=True, timeout=LIMIT_S)
    return sorted([*out.glob("shardbus-*.whl"), *out.glob("shardbus-*.tar.gz")])


def check(files: list[Path], tools: Path) -> None:
    """Run both checkers.

    Raises:
        CalledProcessError: one of them has found something.
    """
    wheels = [str(path) for path in files if path.suffix == ".whl"]
    names = [str(path) for path in files]
    commands = [[str(tools / "twine"), "check", "--strict", *names]]
    commands += [[str(tools / "check-wheel-contents"), *wheels]]
    for command in commands:
        subprocess.run(command, cwd=ROOT, check=True, timeout=LIMIT_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", default="", help="the address of the repository")
    parser.add_argument("--tools", type=Path, help="the folder of twine and check-wheel-contents")
    options = parser.parse_args()
    files = build(options.out, options.url.rstrip("/"))
    if options.tools is not None:
        check(files, options.tools)
    print("\n".join(map(str, files)))
    if not options.url:
        print("without URLs: name the repository's address by URL= before you upload them")


if __name__ == "__main__":
    main()
