#!/bin/bash
# freezegun 1.5.5 and time-machine 3.6.0 with msgspec 0.23.0 and orjson 3.13.0: dates that a test makes while time is set.
#
# Expected: `datetime.now(UTC)` under either library can be encoded, as without it. Both are drop-in ways to set the time of a test.
# Behaviour: freezegun puts a subclass of its own in the place of `datetime`, and both encoders take `datetime` itself alone. So a
#   program that encodes the present time fails in each test that freezes it, and only there; time-machine changes the clock below and
#   leaves the class alone. A decoder that was made before makes plain dates under both, so a decoded value can be encoded again.
# Output seen:
#   freezegun: FakeDatetime, msgspec refused, orjson refused, decoded encoded
#   time-machine: datetime, msgspec encoded, orjson encoded, decoded encoded
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > program.py <<'PYTHON'
import datetime
import sys

import freezegun
import msgspec
import orjson
import time_machine

TEXT = b'"2024-03-01T12:00:00Z"'
DECODER = msgspec.json.Decoder(datetime.datetime)


def tried(encode, value):
    try:
        encode(value)
    except TypeError:
        return "refused"
    return "encoded"


def shown(name):
    now = datetime.datetime.now(datetime.timezone.utc)
    decoded = DECODER.decode(TEXT)
    print(
        f"{name}: {type(now).__name__}, msgspec {tried(msgspec.json.encode, now)},"
        f" orjson {tried(orjson.dumps, now)}, decoded {tried(msgspec.json.encode, decoded)}"
    )


if sys.argv[1] == "freezegun":
    with freezegun.freeze_time("2024-03-01 12:00"):
        shown("freezegun")
else:
    with time_machine.travel(datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.timezone.utc)):
        shown("time-machine")
PYTHON
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check freezegun==1.5.5 time-machine==3.6.0 msgspec==0.23.0 orjson==3.13.0
seen=$(venv/bin/python program.py freezegun; venv/bin/python program.py time-machine)
echo "$seen"
test "$seen" = "freezegun: FakeDatetime, msgspec refused, orjson refused, decoded encoded
time-machine: datetime, msgspec encoded, orjson encoded, decoded encoded"
