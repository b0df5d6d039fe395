#!/bin/bash
# pyzmq 27.1.0 with its own libzmq 4.3.5, on Linux; needs strace.
#
# Expected: a ROUTER that binds a numeric address, `tcp://127.0.0.1:PORT`, opens sockets of TCP only: there is no name
#   and no interface to look up. A context without options leaves the scheduling of its threads alone.
# Behaviour: the bind asks the kernel for its interfaces, by a socket of AF_NETLINK (getifaddrs), because the address
#   could be the name of an interface. And each thread of the context calls sched_setscheduler for itself, with the
#   policy that it has already (SCHED_OTHER). Neither can be turned off, and libzmq takes no refusal of either.
# So a sandbox that is made of what a server of TCP needs, systemd's `RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX`
#   or `SystemCallFilter=~@resources`, does not fit: permit AF_NETLINK and sched_setscheduler.
# Output seen:
#   libzmq 4.3.5: address families AF_INET AF_NETLINK; threads that set their scheduler: 2, to SCHED_OTHER
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyzmq==27.1.0
cat > "$folder/program.py" <<'PY'
import zmq

with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
    router.bind("tcp://127.0.0.1:*")
print(zmq.zmq_version())
PY
version=$(strace -f -qq -e trace=socket,sched_setscheduler -o "$folder/trace" "$folder/venv/bin/python" "$folder/program.py")
families=$(grep -o 'socket(AF_[A-Z0-9]*' "$folder/trace" | sed 's/socket(//' | grep -v AF_UNIX | sort -u | tr '\n' ' ' | sed 's/ $//')
threads=$(grep -c 'sched_setscheduler(.*SCHED_OTHER.*= 0' "$folder/trace")
seen="libzmq $version: address families $families; threads that set their scheduler: $threads, to SCHED_OTHER"
echo "$seen"
[ "$seen" = "libzmq 4.3.5: address families AF_INET AF_NETLINK; threads that set their scheduler: 2, to SCHED_OTHER" ]
