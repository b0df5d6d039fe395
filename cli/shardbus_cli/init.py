"""`init`: make a project with an entity, a test, a web route, a compose file and a README.

The application is the module `template.app`, which `shardbus dev --demo` runs; the other files are
in `template/files`, each with the suffix `.txt`. Only the name of the cluster, `demo`, is replaced
by the directory's. No file is ever replaced. The folder `wheels` gets a wheel of shardbus itself
(`own_wheel`), for the image of the Dockerfile.

Source: docs/how-to/develop.md; docs/reference/cli.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.own_wheel import own_wheel

TEMPLATE = Path(__file__).parent / "template"
SUFFIX = ".txt"
DEMO = re.compile(r"\bdemo\b")
WHEELS = "wheels"
HIDDEN = ("gitignore", "dockerignore")
"""Files whose names get a dot in front, which packaging tools would leave out."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
) -> None:
    """Make a project: an entity, its test, a web route, a compose file and a README."""
    name = cluster_name(directory.resolve().name)
    files = {file: DEMO.sub(name, text).encode() for file, text in templates().items()}
    wheel, data = own_wheel()
    files[f"{WHEELS}/{wheel}"] = data
    _write(directory, files)
    for file in sorted(files):
        output.data(str(directory / file))
    output.note(f"next: cd {directory} && shardbus dev --reload")


def cluster_name(directory: str) -> str:
    """Return a name for the cluster, from the directory's: letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", directory.lower()).strip("-")
    return name or "demo"


def templates() -> dict[str, str]:
    """Return the files of a project, by name."""
    texts = {"app.py": (TEMPLATE / "app.py").read_text(encoding="utf-8")}
    for path in sorted((TEMPLATE / "files").glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        texts[f".{name}" if name in HIDDEN else name] = path.read_text(encoding="utf-8")
    return texts


def _write(directory: Path, files: dict[str, bytes]) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise CommandFailure(
                f"{str(directory)!r} is not empty", "name a new directory", code=ExitCode.REFUSED
            )
        for name, data in files.items():
            (directory / name).parent.mkdir(exist_ok=True)
            with (directory / name).open("xb") as file:
                file.write(data)
    except OSError as failed:
        raise CommandFailure(
            f"{str(directory)!r} cannot be written: {failed.strerror}",
            "name a directory that you may write to",
        ) from None
