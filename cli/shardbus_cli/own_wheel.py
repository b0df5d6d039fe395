"""The wheel of shardbus, made of the files from which this command runs.

A project that `shardbus init` makes gets it into `wheels/`, so that its image, and its environment
on another machine, install this very version by its name, although no index has it.

Source: the binary distribution format of the Python Packaging User Guide.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from shardbus_cli.exit_codes import CommandFailure

NAME = "shardbus"
PACKAGES = (NAME, "shardbus_cli", "pytest_shardbus")
KEPT = ("METADATA", "WHEEL", "entry_points.txt")
COMPILED = "__pycache__"


def own_wheel() -> tuple[str, bytes]:
    """Return the name of the file, and its content.

    Raises:
        CommandFailure: shardbus is not installed as a package.
    """
    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        raise CommandFailure(
            "this shardbus is not installed, so no wheel of it can be made", "pip install it"
        ) from None
    release = f"{NAME}-{installed.version}"
    files = {
        **dict(_of_packages()),
        **{
            f"{release}.dist-info/{name}": text.encode()
            for name in KEPT
            if (text := installed.read_text(name)) is not None
        },
    }
    record = f"{release}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return f"{release}-py3-none-any.whl", packed.getvalue()


def _of_packages() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            root = Path(folder)
            for file in sorted(root.rglob("*")):
                inner = file.relative_to(root)
                if file.is_file() and COMPILED not in inner.parts:
                    yield f"{package}/{inner.as_posix()}", file.read_bytes()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
