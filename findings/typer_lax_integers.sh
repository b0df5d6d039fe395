#!/bin/bash
# typer 0.29.2 with pydantic 2.14.3: options of a type `int`, whose values pydantic converts since typer left click's types.
#
# Expected: an option takes the texts that `int()` takes, as with typer 0.20.0 and click 8.1.8.
# Behaviour: "1.0" is taken as 1, and digits of other scripts are refused, both contrary to `int()`. Tabs and spaces around a
#   number, a sign, leading zeros and "1_000" are as before. And the first option that is converted imports pydantic: `import
#   typer` alone does not, so a measurement of the import misses most of a command's start.
# Output seen:
#   0.20.0: 1.0 refused, 12 as Arabic-Indic digits 12, 1_000 1000
#   0.29.2: 1.0 1, 12 as Arabic-Indic digits refused, 1_000 1000
#   pydantic: False after `import typer`, True after a command with --n 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > program.py <<'PYTHON'
import sys

import typer

before = "pydantic" in sys.modules
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(n: int = 0) -> None:
    print(n, before, "pydantic" in sys.modules)


app()
PYTHON
tried() {
    "$1/bin/python" program.py --n "$2" 2> error.txt | cut -d' ' -f1 | grep . || echo refused
}
shown() {
    echo "1.0 $(tried "$1" 1.0), 12 as Arabic-Indic digits $(tried "$1" $'\u0661\u0662'), 1_000 $(tried "$1" 1_000)"
}
export LC_ALL=C.UTF-8
python3 -m venv old
old/bin/pip install --quiet --disable-pip-version-check typer==0.20.0 click==8.1.8
python3 -m venv new
new/bin/pip install --quiet --disable-pip-version-check typer==0.29.2 pydantic==2.14.3
old=$(shown old)
new=$(shown new)
echo "0.20.0: $old"
echo "0.29.2: $new"
test "$old" = "1.0 refused, 12 as Arabic-Indic digits 12, 1_000 1000"
test "$new" = "1.0 1, 12 as Arabic-Indic digits refused, 1_000 1000"
loaded=$(new/bin/python program.py --n 1)
echo "pydantic: ${loaded#1 }"
test "$loaded" = "1 False True"
