#!/bin/sh
# A function that Nuitka has compiled passes `isinstance(f, types.FunctionType)`, and shows bytecode that never runs.
#
# Nuitka 4.3.3, `--module`. Python refuses a class that derives from FunctionType ("not an acceptable base type"), so
# `isinstance(f, FunctionType)` seems to promise a function of Python. Nuitka's type `compiled_function` derives from it in C, so
# it and `inspect.isfunction` say True. The function's `__code__` is a real code object, but of a stand-in: `co_names` is
# ('RuntimeError',), `co_consts` has 'Compiled function bytecode used', and `dis` shows a `raise` and no return. So a
# library that reads bytecode (which names does this function use? does each return give a constant?) reads this stand-in,
# and draws wrong conclusions with no error. `type(f) is FunctionType` tells the two apart. Signature, annotations and
# `iscoroutinefunction` are right.
#
# Seen (2026-12-01, Python 3.11):
#   isinstance FunctionType: True, type: compiled_function
#   co_names: ('RuntimeError',), of plain Python: ('deliver',)
#   returns in its bytecode: []
set -eu
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
"${PYTHON:-python3}" -m venv "$home/v"
"$home/v/bin/pip" install -q --disable-pip-version-check nuitka==4.3.3
cd "$home"
cat > made.py <<'PY'
async def ask(shop: str) -> str:
    return await shop.deliver(1)
PY
"$home/v/bin/python" -m nuitka --module made.py --quiet --remove-output >/dev/null 2>&1
rm made.py
cat > look.py <<'PY'
import dis
import inspect
import types

import made


def plain(shop: str) -> str:
    return shop.deliver(1)


returns = [i.opname for i in dis.get_instructions(made.ask) if i.opname.startswith("RETURN")]
is_function = isinstance(made.ask, types.FunctionType)
print(f"isinstance FunctionType: {is_function}, type: {type(made.ask).__name__}")
print(f"co_names: {made.ask.__code__.co_names}, of plain Python: {plain.__code__.co_names}")
print(f"returns in its bytecode: {returns}")
assert is_function and inspect.isfunction(made.ask) and type(made.ask) is not types.FunctionType
assert made.ask.__code__.co_names == ("RuntimeError",) and plain.__code__.co_names == ("deliver",)
assert returns == []
assert inspect.iscoroutinefunction(made.ask)
assert inspect.signature(made.ask).parameters["shop"].annotation is str
try:
    type("Own", (types.FunctionType,), {})
except TypeError as refused:
    print("a class of Python that derives from it:", refused)
else:
    raise SystemExit("Python accepts a class that derives from FunctionType")
PY
"$home/v/bin/python" look.py
