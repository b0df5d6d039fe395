"""`keys new`, `keys show`, `keys rotate`: the file with a cluster's secret.

    shardbus keys new cluster.secret          make one; copy it to every machine
    shardbus keys show cluster.secret         print its public parts
    shardbus keys rotate cluster.secret       put a new secret in front of the present one
    shardbus keys reload                      every node reads its file again
    shardbus keys rotate cluster.secret --finish
    shardbus keys token reader.token          a token for HTTP
    shardbus keys own node-1 node-1.key       a key for one process, for security.allowed

No command prints a secret.

Source: docs/how-to/keys.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shardbus_cli import output
from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.node_http import NodeHttp
from shardbus_cli.parameters import NODE_URL, AsJson, Json, NodeUrl

app = typer.Typer(help="The secret of a cluster.", no_args_is_help=True)
IfMissing = Annotated[
    bool, typer.Option("--if-missing", help="Keep a file that is there, if it can be used.")
]

SECRET_FILE = "cluster.secret"  # noqa: S105  (the name of a file)
File = Annotated[
    Path,
    typer.Argument(
        metavar="[FILE]", envvar="SHARDBUS_SECURITY__SECRET", help="File with the secret."
    ),
]


@app.command()
def new(
    file: File = Path(SECRET_FILE),
    if_missing: IfMissing = False,
) -> None:
    """Make a secret. An existing file is never replaced."""
    from shardbus.transport.secret_file import (
        new_secret,
        read_secrets,
        secrets_text,
        write_private,
    )

    if if_missing and file.exists():
        read_secrets(file)
        output.note(f"{file} is there already")
        return
    write_private(file, secrets_text([new_secret()]))
    output.note(f"{file} is written: copy it to every machine and name it in security.secret")


@app.command()
def token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the token.")],
    if_missing: IfMissing = False,
) -> None:
    """Make a token for HTTP, for http.reader_token_file or http.token_file."""
    import secrets

    from shardbus.transport.secret_file import read_private, write_private

    if if_missing and file.exists():
        read_private(file, "a token")
        output.note(f"{file} is there already")
        return
    write_private(file, f"{secrets.token_hex(16)}\n")
    output.note(f"{file} is written: name it in http.reader_token_file or http.token_file")


@app.command()
def show(
    file: File = Path(SECRET_FILE),
    as_json: Json = False,
) -> None:
    """Show the fingerprint and the public keys of each secret in the file."""
    rows = _rows(file)
    if as_json:
        output.data(json.dumps({"secrets": rows}))
    else:
        output.table(("use", "fingerprint", "server_key", "node_key"), rows)


@app.command()
def rotate(
    file: File = Path(SECRET_FILE),
    finish: Annotated[
        bool, typer.Option("--finish", help="Remove every secret but the newest.")
    ] = False,
) -> None:
    """Put a new secret in front of the present one, or finish a rotation."""
    from shardbus.errors import Refused
    from shardbus.transport.secret_file import (
        new_secret,
        read_secrets,
        secrets_text,
        write_private,
    )

    held = read_secrets(file)
    if finish and len(held) == 1:
        raise Refused(f"{file} has one secret: no rotation is under way")
    if not finish and len(held) > 1:
        raise Refused(
            f"{file} has {output.counted(len(held), 'secret')}: a rotation is under way",
            hint="end it with --finish",
        )
    kept = held[:1] if finish else (new_secret(), *held)
    write_private(file, secrets_text(kept), replace=True)
    later = "" if finish else ", then finish with `shardbus keys rotate --finish`"
    output.note(f"{file} is written: copy it to every machine, `shardbus keys reload`{later}")


@app.command()
def own(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the identity.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File for the key.")],
    client: Annotated[
        bool, typer.Option("--client", help="For a client, which gets no secret of the cluster.")
    ] = False,
    secret: Annotated[
        Path | None,
        typer.Option(
            "--secret",
            envvar="SHARDBUS_SECURITY__SECRET",
            metavar="FILE",
            help="With --client: the cluster's secret, whose public keys the client needs.",
        ),
    ] = None,
) -> None:
    """Make a key of its own for one process, and print its entry for security.allowed."""
    from shardbus.ids import check_id
    from shardbus.transport.secret_file import new_secret, write_private
    from shardbus.transport.zmq.curve import KeyPair, Keyring

    check_id("the name of an identity", name)
    made = new_secret()
    lines = [f"# The key of {json.dumps(name)}: keep it private.", f"key {made.hex()}"]
    if client:
        if secret is None:
            raise CommandFailure(
                "a client needs the cluster's public keys", "add --secret", code=ExitCode.USAGE
            )
        lines += [f"server {keys.server.public.decode()}" for keys in Keyring(secret).keys]
    write_private(file, "\n".join([*lines, ""]))
    role = "client" if client else "node"
    public = KeyPair.of(made).public.decode()
    output.data(f'[{json.dumps(name)}]\nkey = {json.dumps(public)}\nrole = "{role}"')


@app.command()
def reload(
    member: Annotated[
        str | None, typer.Option("--member", metavar="NODE", help="Only this node: host:port#uid.")
    ] = None,
    node: NodeUrl = NODE_URL,
    as_json: AsJson = False,
) -> None:
    """Let every node read the file of its secret again, as SIGHUP does for one."""
    answer = NodeHttp(node).post("v1", "keys", "reload", node=member)
    if not answer.printed(as_json):
        output.table(("node", "changed", "keys", "error"), answer["nodes"])
    answer.check_silent()
    if any(row["error"] for row in answer["nodes"]):
        raise CommandFailure("a node could not read its file", "see the column ERROR")


def _rows(file: Path) -> list[dict[str, str]]:
    from shardbus.transport.zmq.curve import Keyring

    rows = []
    for number, keys in enumerate(Keyring(file).keys):
        rows.append(
            {
                "use": "accepted" if number else "in use",
                "fingerprint": keys.fingerprint,
                "server_key": keys.server.public.decode(),
                "node_key": keys.node.public.decode(),
            }
        )
    return rows
