"""The steps of journals as Lua scripts. The rules of `redis_scripts` hold: each write is signed
with session and sequence, and a command older than the values it meets answers `late`.

| key | kind | holds |
|---|---|---|
| `<prefix>:{<kind>/<shard>}:journal:<name>` | hash | `v` = fence, signature, op; `last`; `trimmed`;
  each entry under its number |

A journal is one key, so a cluster that moves its slot moves head and entries in one step, and the
states of a shard and its journals are on one master. A list of its own for the entries would take
less memory for short ones, and could be on the way while the head is not.

Source: `journal_protocol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardbus.store.journal_protocol import Append
from shardbus.store.redis_packing import Value
from shardbus.store.redis_scripts import FENCE_WIDTH, LATE, Script


def size_of_entries(appends: Sequence[Append]) -> int:
    """Return the bytes of the entries of these appends."""
    return sum(append.size for append in appends)


def _signed(signature: str, appends: Sequence[Append]) -> list[Value]:
    """Return the arguments that APPEND takes."""
    args = list[Value]()
    for _, _, _, fence, entries, op_id, after in appends:
        args += (f"{fence:0{FENCE_WIDTH}}{signature}{op_id:016x}", after, len(entries), *entries)
    return args


def _refused_places(answers: list[Any]) -> list[Any]:
    return [part for i, refused in enumerate(answers, 1) if refused for part in (i, *refused[1:])]


# KEYS journals, each once; ARGV from 3 on: for each of them `v` as it is to be stored, the number
# of the entry before, the count of entries, and the entries. All are checked before one is written,
# so that `late` means that none was written. Answers place, cause and stored value of each that is
# refused, in turn.
APPEND = Script(
    LATE
    + """
local keys, args, call = KEYS, ARGV, redis.call
local places, skipped, refused, place = {}, {}, {}, 3
local function refuse(i, cause, value)
  skipped[i] = true
  refused[#refused + 1] = i
  refused[#refused + 1] = cause
  refused[#refused + 1] = value
end
for i = 1, #keys do
  local new, after = args[place], args[place + 1]
  places[i], place = place, place + 3 + args[place + 2]
  local kept = call('HMGET', keys[i], 'v', 'last')
  local v, last = kept[1], kept[2] or '0'
  local stored = v and v:sub(1, 19)
  if v and v:sub(45) == new:sub(45) then
    skipped[i] = true
  elseif v and stored > new:sub(1, 19) then
    refuse(i, 'fence', stored)
  elseif v and stored == new:sub(1, 19) and late(v:sub(20, 44)) then
    return 'late'
  elseif last ~= after then
    refuse(i, 'last', last)
  end
end
for i = 1, #keys do
  if not skipped[i] then
    local at = places[i]
    local after, count = tonumber(args[at + 1]), tonumber(args[at + 2])
    local put = {'v', args[at], 'last', string.format('%.0f', after + count)}
    for n = 1, count do
      put[#put + 1] = string.format('%.0f', after + n)
      put[#put + 1] = args[at + 2 + n]
    end
    for first = 1, #put, 1000 do
      call('HSET', keys[i], unpack(put, first, math.min(#put, first + 999)))
    end
  end
end
return refused
""",
    join=_refused_places,
    own_args=True,
    size=size_of_entries,
    sign=_signed,
    usual=b"*0\r\n",
)

# `page` returns the answer of READ: the number of the first entry, the last number, and the
# entries, nil for one that is missing.
_PAGE = """
local function page(key, after, limit, bytes)
  local kept = redis.call('HMGET', key, 'last', 'trimmed')
  local last, trimmed = tonumber(kept[1] or '0'), tonumber(kept[2] or '0')
  local first = math.max(after, trimmed) + 1
  local stop = math.min(last, first + limit - 1)
  local entries, size, at = {}, 0, first
  while at <= stop and size < bytes do
    local names = {}
    for n = at, math.min(stop, at + 31) do names[#names + 1] = string.format('%.0f', n) end
    for _, entry in ipairs(redis.call('HMGET', key, unpack(names))) do
      if size >= bytes then break end
      entries[#entries + 1] = entry
      size = size + (entry and #entry or 0)
    end
    at = at + #names
  end
  return {first, last, entries}
end
"""

# KEYS journal; ARGV 3 after, 4 limit, 5 bytes
READ = Script(
    _PAGE + "return page(KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))",
    writes=False,
)

# KEYS journal; ARGV 3 after, 4 limit, 5 bytes, 6 fence
OPEN = Script(
    LATE
    + _PAGE
    + """
local v = redis.call('HGET', KEYS[1], 'v')
if v and v:sub(1, 19) > ARGV[6] then return {'fence', v:sub(1, 19)} end
if v and v:sub(1, 19) == ARGV[6] and late(v:sub(20, 44)) then return 'late' end
redis.call('HSET', KEYS[1], 'v', ARGV[6] .. session .. seq .. (v and v:sub(45) or ''))
return page(KEYS[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
"""
)

# KEYS journal; ARGV 3 fence, 4 the last number to remove, 5 '1' to remove the head too, 6 the
# entries to remove at most. Returns 1 if more are to be removed, else 0.
TRIM = Script(
    LATE
    + """
local kept = redis.call('HMGET', KEYS[1], 'v', 'last', 'trimmed')
local v, last, trimmed = kept[1], tonumber(kept[2] or '0'), tonumber(kept[3] or '0')
if not v then return 0 end
if v:sub(1, 19) > ARGV[3] then return {'fence', v:sub(1, 19)} end
if v:sub(1, 19) == ARGV[3] and late(v:sub(20, 44)) then return 'late' end
local stop = math.min(tonumber(ARGV[4]), last)
local step = math.max(trimmed, math.min(stop, trimmed + tonumber(ARGV[6])))
if ARGV[5] == '1' and step == last then return redis.call('DEL', KEYS[1]) * 0 end
for first = trimmed + 1, step, 1000 do
  local names = {}
  for n = first, math.min(step, first + 999) do names[#names + 1] = string.format('%.0f', n) end
  redis.call('HDEL', KEYS[1], unpack(names))
end
redis.call('HSET', KEYS[1], 'v', ARGV[3] .. session .. seq .. v:sub(45),
  'trimmed', string.format('%.0f', step))
return step < stop and 1 or 0
"""
)
