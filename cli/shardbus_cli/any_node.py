"""Reading from any node of a cluster: if the node that was named does not answer, another one does.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp

T = TypeVar("T")


class AnyNode:
    """The cluster of one node. `url` is the node that answered last."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._others: list[str] = []

    def read(self, read: Callable[[NodeHttp], T]) -> T:
        """Return the answer that `read` gets from the node, or from the first other one that
        answers.

        Raises:
            CommandFailure: no node answers; it is the failure of the node asked first.
        """
        try:
            return read(NodeHttp(self.url))
        except CommandFailure as failure:
            if failure.code is not ExitCode.UNREACHABLE:
                raise
            for other in self._others:
                try:
                    answer = read(NodeHttp(other))
                except CommandFailure:
                    continue
                self.url = other
                return answer
            raise

    def learn(self, http: NodeHttp, nodes: Mapping[str, Any]) -> None:
        """Take the other nodes from the page `/v1/nodes` of a node that answered."""
        self._others = [url for _, url in http_urls(http.url, nodes)]


def http_urls(url: str, nodes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each member with HTTP and its URL, from the page `/v1/nodes` of the node at `url`."""
    scheme = url.partition("://")[0]
    rows = nodes.get("nodes", ())
    return [(str(r.get("node")), f"{scheme}://{r['http']}") for r in rows if r.get("http")]
