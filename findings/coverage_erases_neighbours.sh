#!/bin/bash
# coverage 7.11.0 with `parallel = true`, alone and under pytest-cov 7.0.0 with pytest-xdist 3.8.0: files beside the data.
#
# Expected: `coverage erase`, and the start of a run by pytest-cov, remove data files of earlier runs: `lines`, and those
#   of its processes, `lines.HOST.pid...`.
# Behaviour: they remove every file whose name begins with the data file's and a dot, whatever is in it. A settings file
#   `lines.ini` and a report `lines.txt` beside the data file `lines` are gone; a pytest run whose settings stand there
#   ends with "Couldn't read ... as a config file", because its first step has removed them for its second.
# Output seen:
#   before: lines lines.ini lines.txt
#   after `coverage erase`: settings.toml
#   under pytest: Couldn't read 'lines.ini' as a config file
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check coverage==7.11.0 pytest==8.4.2 pytest-cov==7.0.0 pytest-xdist==3.8.0
mkdir run && cd run
write() {
    printf '[run]\nparallel = true\ndata_file = lines\n' > lines.ini
    echo kept > lines.txt
    touch lines settings.toml
}
write
echo "before: $(echo lines*)"
../venv/bin/coverage erase --rcfile=lines.ini
after=$(echo *)
echo "after \`coverage erase\`: $after"
test "$after" = settings.toml

printf '[run]\ndata_file = %s/lines\n' "$PWD" > lines.ini
printf 'def test_one():\n    assert True\n' > test_one.py
said=$(../venv/bin/pytest -q -n 2 --cov --cov-config=lines.ini --cov-report= test_one.py 2>&1 || true)
echo "under pytest: $(grep -o "Couldn't read .* as a config file" <<< "$said" | tail -1)"
grep -q "Couldn't read 'lines.ini' as a config file" <<< "$said"
test ! -e lines.ini
