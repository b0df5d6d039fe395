#!/bin/sh
# msgspec 0.22.0 leaves fields of an object out of what it encodes, without an error, where an encoder
# of dataclasses would be expected to raise or to send them. Seen on CPython 3.11:
#
#   an attrs attribute whose name begins with "_"  is left out; the same field of a dataclass or of a
#                                                  Struct is sent
#   a dataclass field whose attribute was deleted  is left out; the decoder then makes a new value by
#                                                  default_factory. A Struct raises AttributeError
#   a dataclass whose attribute access raises      is left out, whatever is raised, also SystemExit:
#                                                  the error is swallowed
#   a naive datetime and an aware one in a dict    arrive as a str and as a datetime
#
# The output seen is the `expected` text below. Exit code 0: as described; 1: the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check msgspec==0.22.0 attrs==26.1.0
cat > "$folder/seen.py" <<'PROGRAM'
import datetime, itertools
from dataclasses import dataclass, field

import attrs, msgspec

encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
ids = itertools.count(1)


@dataclass
class Data:
    a: int = 1
    _b: int = 2
    key: int = field(default_factory=lambda: next(ids))


class Struct(msgspec.Struct):
    a: int = 1
    _b: int = 2


@attrs.define
class Attrs:
    a: int = 1
    _b: int = 2


@dataclass
class Raising:
    a: int = 1
    b: int = 2

    def __getattribute__(self, name):
        if name == "b":
            raise SystemExit("ends the program")
        return object.__getattribute__(self, name)


print("private, dataclass:", decode(encode(Data(key=0))))
print("private, Struct:", decode(encode(Struct())))
print("private, attrs:", decode(encode(Attrs(b=7))), "->", decode(encode(Attrs(b=7)), type=Attrs))
data = Data()
del data.key
print("deleted, dataclass:", decode(encode(data)), "->", decode(encode(data), type=Data))
struct = Struct()
del struct.a
try:
    encode(struct)
except AttributeError as error:
    print("deleted, Struct:", error)
print("raises:", decode(encode(Raising())))
naive = datetime.datetime(2026, 1, 2)
print("in a dict:", *(type(v).__name__ for v in decode(encode({"n": naive, "a": naive.astimezone(datetime.UTC)})).values()))
PROGRAM
cat > "$folder/expected" <<'EXPECTED'
private, dataclass: {'a': 1, '_b': 2, 'key': 0}
private, Struct: {'a': 1, '_b': 2}
private, attrs: {'a': 1} -> Attrs(a=1, _b=2)
deleted, dataclass: {'a': 1, '_b': 2} -> Data(a=1, _b=2, key=2)
deleted, Struct: Struct field 'a' is unset
raises: {'a': 1}
in a dict: str datetime
EXPECTED
"$folder/venv/bin/python" "$folder/seen.py" > "$folder/seen"
cat "$folder/seen"
diff "$folder/expected" "$folder/seen"
