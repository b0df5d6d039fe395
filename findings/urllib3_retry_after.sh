#!/bin/bash
# urllib3 2.5.0 with its plain PoolManager, no retry configured. A server answers every PUT by 503.
#
# Expected: without a retry policy (`status_forcelist` is empty) a status is an answer, and a PUT is sent once.
# Behaviour: that holds for a bare 503. With a `Retry-After` header the same PUT is sent four times, without a word,
#   and the caller gets the last answer. The header alone makes the answer a reason to send again, for 503, 429 and
#   413 (a body that is too large is sent four times), and every idempotent method; POST is sent once.
# So a service must not set Retry-After where the work may have been done.
# Output seen:
#   PUT 503: 1 request, answer 503 b'why'
#   PUT 503 Retry-After: 4 requests, answer 503 b'why'
#   PUT 413 Retry-After: 4 requests, answer 413 b'why'
#   POST 503 Retry-After: 1 request, answer 503 b'why'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check urllib3==2.5.0
cat > "$folder/program.py" <<'PY'
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import urllib3

seen = []


class Busy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        seen.append(self.path)
        status, after = int(self.path.split("/")[1]), self.path.split("/")[2]
        self.send_response(status)
        if after:
            self.send_header("Retry-After", after)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"why")

    do_PUT = do_POST = answer

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
threading.Thread(target=server.serve_forever, daemon=True).start()
pool, said = urllib3.PoolManager(), []
for method, status, after in (("PUT", 503, ""), ("PUT", 503, "0"), ("PUT", 413, "0"), ("POST", 503, "0")):
    seen.clear()
    url = f"http://127.0.0.1:{server.server_port}/{status}/{after}"
    answer = pool.request(method, url, body=b"1")
    outcome = f"answer {answer.status} {answer.data!r}"
    requests = "1 request" if len(seen) == 1 else f"{len(seen)} requests"
    said.append(f"{method} {status}{' Retry-After' if after else ''}: {requests}, {outcome}")
print("\n".join(said))
assert said == [
    "PUT 503: 1 request, answer 503 b'why'",
    "PUT 503 Retry-After: 4 requests, answer 503 b'why'",
    "PUT 413 Retry-After: 4 requests, answer 413 b'why'",
    "POST 503 Retry-After: 1 request, answer 503 b'why'",
], said
PY
"$folder/venv/bin/python" "$folder/program.py"
