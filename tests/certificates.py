"""Certificates for tests: made by `openssl`, for this machine's loopback address, trusted by no
system."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str = "node") -> tuple[str, str]:
    """Return the files of a certificate for 127.0.0.1 and of its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run(
        [*words.split(), "-keyout", str(key), "-out", str(cert), *subject],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)
