#!/bin/sh
# basedpyright beside mypy: methods made by a typed decorator fit a Protocol with `async def` for one of them only.
#
# Version: basedpyright 1.40.2 (pyright 1.1.414), mypy 2.4.1, Linux.
#
# Both document that `async def f() -> int` declares a function that returns a coroutine. To mypy that is
# `collections.abc.Coroutine[Any, Any, int]`. To pyright it is the class `types.CoroutineType[Any, Any, int]`, which is narrower.
# So a Protocol whose method is an `async def` demands different things: a decorator that declares
# `Callable[..., Coroutine[Any, Any, T]]` makes methods that mypy accepts and pyright refuses. With `CoroutineType` for the result
# both accept the class, but mypy then refuses the `async def` that the decorator itself returns, and needs a cast. And the
# annotation must be a string or a comment: up to Python 3.12 `types.CoroutineType[...]` raises TypeError when it runs.
#
# Seen:
#   Coroutine:     mypy 0 errors, basedpyright 1 error (reportAssignmentType)
#   CoroutineType: mypy 1 error (return-value), basedpyright 0 errors
#   CoroutineType and a cast: mypy 0 errors, basedpyright 0 errors
#
# Exit code 0: it behaves so. 1: it has changed. 2: the packages could not be installed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'basedpyright==1.40.2' 'mypy==2.4.1' || exit 2
cd "$folder"
# Write a program: the type that the decorator declares, and the value that it returns.
program() {
    cat >"$1.py" <<PROGRAM
from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")


class Loads(Protocol):
    async def load(self) -> int: ...


def timed(method: Callable[[Any], Coroutine[Any, Any, T]]) -> Callable[[Any], "$2[Any, Any, T]"]:
    async def run(self: Any) -> T:
        return await method(self)

    return $3


class Store:
    @timed
    async def load(self) -> int:
        return 1


store: Loads = Store()
PROGRAM
}
program coroutine Coroutine run
program coroutinetype CoroutineType run
program cast CoroutineType "cast('Callable[[Any], CoroutineType[Any, Any, T]]', run)"
# Print the errors that a checker has for a program: their number and rules.
errors() {
    if [ "$1" = mypy ]; then
        venv/bin/mypy --no-error-summary --hide-error-context "$2.py" | sed -n 's/.*: error: .*\[\(.*\)\]$/\1/p' | sort | tr '\n' ' '
    else
        venv/bin/basedpyright --level error "$2.py" | sed -n 's/.*(\(report[A-Za-z]*\))$/\1/p' | sort | tr '\n' ' '
    fi
}
seen=$(for name in coroutine coroutinetype cast; do
    echo "$name: mypy [$(errors mypy $name || true)] basedpyright [$(errors basedpyright $name || true)]"
done)
echo "$seen"
[ "$seen" = "coroutine: mypy [] basedpyright [reportAssignmentType ]
coroutinetype: mypy [return-value ] basedpyright []
cast: mypy [] basedpyright []" ]
