"""Parameters that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardbus_cli.health import NODE_URL as NODE_URL

NodeUrl = Annotated[
    str,
    typer.Option(
        "--node", envvar="SHARDBUS_NODE_URL", metavar="URL", help="HTTP address of any node."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the JSON of the node.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="At most this many.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="TOML file of settings.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, as in log.level=debug."),
]
App = Annotated[
    str | None,
    typer.Argument(
        metavar="[APP]",
        help="module:attribute, a module, or a path to a .py file; the attribute is a ShardBus or a"
        " function that returns one. Default: SHARDBUS_APP, or `app` of [tool.shardbus] in"
        " pyproject.toml.",
    ),
]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="The same as APP, as an option.")
]
AppOfCluster = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="The application, as for `check`: it names the cluster, its classes read states and"
        " give shards.",
    ),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Name of the cluster. Default: SHARDBUS_CLUSTER, or that of the application, of the"
        " node, or of pyproject.toml.",
    ),
]
StoreUrl = Annotated[
    str, typer.Option("--store", metavar="URL", envvar="SHARDBUS_STORE__URL", help="State store.")
]
MaybeStore = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="SHARDBUS_STORE__URL",
        help="State store. Default: ask a node, or read the store of a project that does not run.",
    ),
]
Secret = Annotated[
    Path | None,
    typer.Option(
        "--secret",
        envvar="SHARDBUS_SECURITY__SECRET",
        metavar="FILE",
        help="File with the cluster's secret.",
    ),
]
EntityType = Annotated[str, typer.Argument(metavar="TYPE", help="Name of the entity type.")]
EntityId = Annotated[str, typer.Argument(metavar="ID", help="Id of the entity.")]


def duration(help_: str, default: float, low: float = 0.0) -> Any:
    """Return an option for a duration in seconds, at least `low`, written as 2, 2s, 100ms or 1m.
    The help shows the default."""

    def seconds(text: str | float) -> float:
        from shardbus.config.options import Option, ValueType, parse
        from shardbus.errors import ConfigError

        try:
            return float(parse(Option(ValueType.SECONDS, "", "s", low=low, high=86400.0), text))
        except ConfigError as wrong:
            hint = "write 2s, 100ms or seconds"
            raise typer.BadParameter(f"{wrong.message}: {text!r}; {hint}") from None

    return typer.Option(
        parser=seconds, metavar="DURATION", help=help_, show_default=f"{default:g}s"
    )
