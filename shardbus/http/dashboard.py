"""The page for operators, `/ui`: files of this package, the same for every cluster.

The files hold no data, so they need no token: the page asks `/v1/...` for everything, with the
token that the person gives it. Its policy allows the files of its own origin and nothing else: no
inline script or style, no other host, no frame, no form. A name with HTML in it stays a name.

The files are read once, when the application is made. `ETag` is their hash; a browser sends the
hash of its copy and gets 304 if it is the present one.

Source: docs/how-to/dashboard.md; B.149.
"""

from __future__ import annotations

import hashlib
from importlib import resources

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shardbus.errors import ConfigError

PAGE = "/ui"
INDEX = "index.html"
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class PageFile(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    body: bytes
    type: str
    etag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> PageFile:
        """Return the file with its type, by its name, and its hash."""
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, TYPES[name.rpartition(".")[2]], etag)

    def answer(self, etags: str) -> Response:
        """Return the file, or 304 if the browser has it. `etags`: its If-None-Match."""
        headers = {**HEADERS, "etag": self.etag}
        if self.etag in (etag.strip().removeprefix("W/") for etag in etags.split(",")):
            return Response(None, 304, headers)
        return Response(self.body, 200, {**headers, "content-type": self.type})


class PageFiles:
    """The files of the page."""

    def __init__(self) -> None:
        folder = resources.files("shardbus.http").joinpath("ui")
        if not folder.is_dir():
            raise ConfigError(
                f"the files of the page {PAGE} are not installed: {folder}",
                hint="a packer must take the data files of the package shardbus; PyInstaller's"
                " option for it is --collect-data shardbus",
            )
        files = (file for file in folder.iterdir() if file.name.rpartition(".")[2] in TYPES)
        self.files = {file.name: PageFile.of(file.name, file.read_bytes()) for file in files}

    async def __call__(self, request: Request) -> Response:
        """Return the file that the path names, or the page itself."""
        name = request.path_params.get("file")
        file = self.files.get(INDEX if name is None else name)
        if file is None or name == INDEX:  # the page names its parts from where it is
            raise HTTPException(404)
        return file.answer(request.headers.get("if-none-match", ""))


def page_routes() -> list[Route]:
    """Return the routes of the page and of its parts."""
    serve = PageFiles().__call__
    return [Route(PAGE, serve), Route(f"{PAGE}/{{file}}", serve)]


def is_page(path: str) -> bool:
    """True if the path is the page or may be a part of it."""
    return path == PAGE or path.startswith(f"{PAGE}/")
