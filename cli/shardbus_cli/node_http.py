"""Requests to a running node over HTTP. Commands never join the cluster.

The token and the certificates to trust come from the environment: a command line can be read by
other users of the machine.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.request import HTTPSHandler

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 64 * 2**20
TOKEN_VARIABLE = "SHARDBUS_NODE_TOKEN"  # noqa: S105  (the name of a variable)
TOKEN_FILE_VARIABLE = "SHARDBUS_NODE_TOKEN_FILE"  # noqa: S105  (the name of a variable)
TOKEN_BYTES_MAX = 4096
CACERT_VARIABLE = "SHARDBUS_NODE_CACERT"
CODES = {
    401: ExitCode.REFUSED,
    403: ExitCode.REFUSED,
    409: ExitCode.REFUSED,
    503: ExitCode.UNREACHABLE,
    504: ExitCode.UNREACHABLE,
}
SILENT = "no node at "
"""Begins the message of every failure without an answer."""
START_HINT = "start one with `shardbus node start`, or name one with --node or SHARDBUS_NODE_URL"


def silent(url: str, why: str) -> CommandFailure:
    """Return the failure of a request without an answer."""
    return CommandFailure(f"{SILENT}{url}: {why}", START_HINT, code=ExitCode.UNREACHABLE)


def own_token() -> str:
    """Return the token of this command: of the variable, or of the file that the other one names.

    Raises:
        CommandFailure: the file cannot be read.
    """
    token, file = os.environ.get(TOKEN_VARIABLE, ""), os.environ.get(TOKEN_FILE_VARIABLE, "")
    if token or not file:
        return token
    try:
        with open(file, encoding="ascii") as opened:
            return opened.read(TOKEN_BYTES_MAX).strip()
    except (OSError, ValueError) as failed:
        why = getattr(failed, "strerror", None) or "it is not ASCII"
        raise CommandFailure(
            f"{TOKEN_FILE_VARIABLE}: {file!r} cannot be read: {why}", code=ExitCode.USAGE
        ) from None


class NodePage(dict[str, Any]):
    """The answer of a node as an object, with its text."""

    def __init__(self, facts: Mapping[str, Any], text: str) -> None:
        super().__init__(facts)
        self.text = text

    def printed(self, as_json: bool) -> bool:
        """Print the text unchanged, with --json. Returns True then."""
        if as_json:
            output.data(self.text)
        return as_json

    def check_silent(self, consequence: str = "") -> None:
        """Check that every node has answered.

        Raises:
            CommandFailure: a node did not answer the node of this page.
        """
        if silent := self.get("silent"):
            raise CommandFailure(
                f"no answer from {', '.join(silent)}{consequence}", code=ExitCode.UNREACHABLE
            )


class NodeHttp:
    """The HTTP of one node, by its URL."""

    def __init__(self, url: str) -> None:
        from urllib.parse import urlsplit

        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        try:
            parts = urlsplit(self.url)
            good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            good = False
        if not good or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise CommandFailure(
                f"--node {url!r} is no URL", "write http://127.0.0.1:8558", code=ExitCode.USAGE
            )

    def get(self, *path: str, **query: object) -> str:
        """Return the text of the answer, unchanged. Each part of the path is quoted by itself."""
        return self._ask("GET", path, query)[1]

    def read(self, *path: str, **query: object) -> NodePage:
        """Return the answer as an object."""
        return self.parse(self.get(*path, **query))

    def probe(self, name: str) -> tuple[bool, str]:
        """Return whether a health check passed, and the text of the answer."""
        status, text = self._ask("GET", (name,), {}, accepted=503)
        return status == 200, text

    def post(self, *path: str, **query: object) -> NodePage:
        """Return the answer to a write."""
        return self.parse(self._ask("POST", path, query)[1])

    def post_json(self, body: str, *path: str, **query: object) -> str:
        """Return the text of the answer to a write that sends JSON."""
        return self._ask("POST", path, query, body=body)[1]

    def delete(self, *path: str, **query: object) -> NodePage:
        """Return the answer to a removal."""
        return self.parse(self._ask("DELETE", path, query)[1])

    def parse(self, text: str) -> NodePage:
        """Return an answer as an object.

        Raises:
            CommandFailure: it is no JSON object, so the URL is no node of shardbus.
        """
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise CommandFailure(
                f"the server at {self.url} is no shardbus node",
                START_HINT,
                code=ExitCode.UNREACHABLE,
            )
        return NodePage(answer, text)

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        query: dict[str, object],
        accepted: int = 0,
        body: str | None = None,
    ) -> tuple[int, str]:
        # Here, because these imports take several times as long as a request.
        from http.client import HTTPException
        from urllib.error import HTTPError, URLError
        from urllib.parse import quote, urlencode
        from urllib.request import ProxyHandler, Request, build_opener

        url = "/".join([self.url, *(quote(part, safe="") for part in path)])
        pairs = {key: value for key, value in query.items() if value is not None}
        request = Request(f"{url}?{urlencode(pairs, doseq=True)}" if pairs else url, method=method)  # noqa: S310
        if body is not None:
            request.data = body.encode()
            request.add_header("Content-Type", "application/json")
        if token := own_token():
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        opener = build_opener(ProxyHandler({}), *self._tls())
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
        except HTTPError as refused:
            text = refused.read(ANSWER_BYTES_MAX).decode(errors="replace")
            if refused.code == accepted:
                return refused.code, text
            raise self._failure(refused.code, text) from None
        except TimeoutError:
            raise self._silent(f"no answer within {TIMEOUT_S:g} s") from None
        except URLError as failed:
            if self.url.startswith("https:"):
                self._check_trust(failed.reason)
            timed_out = isinstance(failed.reason, TimeoutError)
            raise self._silent(
                "no answer in time" if timed_out else "nothing listens there"
            ) from None
        except (OSError, HTTPException, ValueError):
            raise self._silent("the answer is incomplete or is not HTTP") from None

    def _tls(self) -> list[HTTPSHandler]:
        """The handler of HTTPS, which trusts the certificates of the system, or of one file."""
        if not self.url.startswith("https:"):
            return []
        import ssl
        from urllib.request import HTTPSHandler

        file = os.environ.get(CACERT_VARIABLE) or None
        try:
            return [HTTPSHandler(context=ssl.create_default_context(cafile=file))]
        except OSError as failed:
            raise CommandFailure(
                f"{file!r} has no certificates: {failed.strerror or failed}",
                f"name a PEM file with --cacert or {CACERT_VARIABLE}",
                code=ExitCode.USAGE,
            ) from None

    def _check_trust(self, failed: object) -> None:
        """Raise the failure of TLS, if it was one."""
        import ssl

        if isinstance(failed, ssl.SSLCertVerificationError):
            raise CommandFailure(
                f"the certificate of {self.url} is not trusted: {failed.verify_message}",
                f"name the file of its authority with --cacert or {CACERT_VARIABLE}",
                code=ExitCode.UNREACHABLE,
            ) from None
        if isinstance(failed, ssl.SSLError):
            raise CommandFailure(
                f"no HTTPS at {self.url}: {failed.reason or failed}",
                "write http:// if the node has no http.tls_cert",
                code=ExitCode.UNREACHABLE,
            ) from None

    def _silent(self, why: str) -> CommandFailure:
        return silent(self.url, why)

    def _failure(self, status: int, text: str) -> CommandFailure:
        try:
            error = json.loads(text)["error"]
            message, hint = str(error["message"]), str(error["hint"])
        except (ValueError, KeyError, TypeError):
            return CommandFailure(
                f"{self.url} answered with status {status}", START_HINT, code=ExitCode.UNREACHABLE
            )
        return CommandFailure(message, hint, code=CODES.get(status, ExitCode.FAILED))
