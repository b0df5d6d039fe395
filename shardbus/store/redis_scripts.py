"""The store's steps as Lua scripts, so that Redis compares and writes in one atomic step.

Every script receives the session of the store object as ARGV[1] and a sequence number as ARGV[2],
which grows with every command of that object, repeats included. A script signs its writes with
both. A command whose sender has given up may still reach the server later, over its old connection,
and would overwrite a newer write of the same sender. The script recognises it by the lower number
and answers `late`. A sender that receives `late` sends its command again.

Numbers of 63 bits do not fit a Lua number. Fences, epochs and sequence numbers are therefore texts
of a fixed width, which compare as the numbers do.

| key (the part in braces is its hash tag) | kind | holds |
|---|---|---|
| `<prefix>:{<type>}:table` | hash | `epoch`, `layout`, `claimer`, `op`, `sign`; `states` |
| `<prefix>:{<type>}:homes` | hash | shard -> `<fence> <node>` |
| `<prefix>:{<type>}:lists` | hash | shard -> `1`, of each that has or had a list |
| `<prefix>:{<type>/<shard>}:entity:<id>` | hash | `v`, `data`, `idle`, `rem` |
| `<prefix>:{<type>/<shard>}:due` | sorted set | entity ids, by milliseconds |
| `<prefix>:{<type>/<shard>}:list` | hash | `v` = fence, signature of the shard's list |
| `<prefix>:{<type>/<shard>}:remembered` | sorted set | entity ids, in the order of their bytes |
| `<prefix>:{<kind>/<shard>}:journal:<name>` | hash | a journal; see `redis_journal_scripts` |
| `<prefix>:lease:{<name>}` | hash | `owner`, `counter`, `until` and `ttl` in server's ms |
| `<prefix>:probe` | hash | `identity`; `keys`, the version of this table; `mark` of one server |
| `<prefix>:{probe/<n>}` | hash | `mark` and `sequence` of a master of a cluster |
| `<prefix>:sync` | hash | `sequence`, written so that each batch writes something |

A `mark` is how a store notices that all keys of a server were lost. `states` is the layout by which
the states of the type are placed in shards (`placement`), `layout` the layout of its table. The `v`
of an entity is fence, signature and op, `idle` is `<v> <ms>`, `rem` the record of its reminders.
`due` has each entity with reminders, by when the first is due. Names within a key are
percent-encoded. No key has a TTL, so no `volatile-*` policy evicts one.

Source: N.1, N.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from shardbus.store.protocol import Save
from shardbus.store.redis_packing import Value

FENCE_WIDTH = 19
SESSION_WIDTH = 10
SEQUENCE_WIDTH = 15


_DATA = itemgetter(Save._fields.index("data"))


def size_of_data(saves: Sequence[Save]) -> int:
    """Return the bytes of the states in these saves."""
    return sum(map(len, filter(None, map(_DATA, saves))))


def fences_of(saves: Sequence[Save]) -> set[int]:
    """Return the fences of these saves: few, since one shard has one."""
    return {save[3] for save in saves}


def _size(args: Sequence[Any]) -> int:
    return sum(len(arg) for arg in args if not isinstance(arg, int))


def _signed(signature: str, saves: Sequence[Save]) -> list[Value]:
    """Return the arguments that SAVE_STATES takes."""
    args = list[Value]()
    signed = {fence: f"{fence:0{FENCE_WIDTH}}{signature}".encode() for fence in fences_of(saves)}
    for _, _, _, fence, data, op_id, _ in saves:
        if data is None:
            args += (b"%b%016x-" % (signed[fence], op_id), b"")
        else:
            args += (b"%b%016x" % (signed[fence], op_id), data)
    return args


def _size_of_reminded(saves: Sequence[Save]) -> int:
    """Return the bytes of the states and the reminders in these saves."""
    return sum(len(s.data or b"") + len((s.reminders and s.reminders.record) or b"") for s in saves)


def _signed_reminded(signature: str, saves: Sequence[Save]) -> list[Value]:
    """Return the arguments that SAVE_REMINDED takes."""
    args = list[Value]()
    signed = {fence: f"{fence:0{FENCE_WIDTH}}{signature}".encode() for fence in fences_of(saves)}
    for _, _, entity_id, fence, data, op_id, reminders in saves:
        assert reminders is not None
        due, record, alone = reminders
        mark = b"=" if alone else b"-" if data is None else b""
        kept = b"" if alone or data is None else data
        first = due if record is not None else 0
        args += (b"%b%016x%b" % (signed[fence], op_id, mark), kept, first, record or b"", entity_id)
    return args


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and its digest, by which a server that has cached the script finds it."""

    source: str
    writes: bool = True
    join: Callable[[list[Any]], Any] | None = None
    """The script treats each key by itself; this makes one answer out of one for each key."""
    own_args: bool = False
    """Each key has an argument of its own."""
    size: Callable[[Sequence[Any]], int] = _size
    """Returns the bytes of the arguments of a call, about."""
    sign: Callable[[str, Sequence[Any]], list[Value]] | None = None
    """Returns the arguments of the script for a call's arguments and the command's signature."""
    usual: bytes = b""
    """The answer to nearly every call, an empty list, as the server sends it."""
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def _each(answers: list[Any]) -> list[Any]:
    return [answer for [answer] in answers]


def _places(answers: list[Any]) -> list[Any]:
    return [place for place, answer in enumerate(answers, 1) if answer]


def _stale_places(answers: list[Any]) -> list[Any]:
    return [part for i, answer in enumerate(answers, 1) if answer for part in (i, answer[1])]


# `signed` is the session and sequence of an earlier write. True if this command is older than it.
LATE = """
local session, seq = ARGV[1], ARGV[2]
local function late(signed)
  return signed and signed:sub(1, 10) == session and signed:sub(11, 25) > seq
end
"""


def signed_script(source: str) -> Script:
    """Return a script that signs its writes: it begins with LATE."""
    return Script(LATE + source)


def reading_script(source: str) -> Script:
    """Return a script that writes nothing."""
    return Script(source, writes=False)


def answer_of_each(expression: str, beginning: str = "") -> Script:
    """Return a script that writes nothing, and returns this expression of each `key`."""
    source = f"""{beginning}
local found = {{}}
for i, key in ipairs(KEYS) do found[i] = {expression} end
return found
"""
    return Script(source, writes=False, join=_each)


# KEYS table, homes; ARGV 3 epoch, 4 layout
CLAIM_EPOCH = signed_script("""
local t = redis.call('HMGET', KEYS[1], 'epoch', 'layout', 'claimer')
local epoch, layout, claimer = t[1], t[2], t[3]
if not (epoch == ARGV[3] and layout == ARGV[4] and claimer == session) then
  if epoch and epoch >= ARGV[3] then return {'stale', epoch} end
  if layout and layout ~= ARGV[4] and redis.call('HLEN', KEYS[2]) > 0 then
    return {'layout', layout}
  end
  redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'layout', ARGV[4], 'claimer', session,
    'sign', session .. seq)
end
return {'ok', ARGV[3], ARGV[4], redis.call('HGETALL', KEYS[2])}
""")

# KEYS table, homes
LOAD_TABLE = reading_script("""
local t = redis.call('HMGET', KEYS[1], 'epoch', 'layout')
if not t[1] then return false end
return {'ok', t[1], t[2], redis.call('HGETALL', KEYS[2])}
""")

# KEYS table, homes; ARGV 3 epoch, 4 op, then shard and home in turn, the home empty for none
WRITE_HOMES = signed_script("""
local t = redis.call('HMGET', KEYS[1], 'epoch', 'op', 'sign', 'claimer')
if t[2] == ARGV[4] then return {'ok'} end
if t[1] ~= ARGV[3] or t[4] ~= session then return {'stale', t[1] or '0'} end
if late(t[3]) then return 'late' end
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[2], ARGV[i])
  else
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', KEYS[1], 'op', ARGV[4], 'sign', session .. seq)
return {'ok'}
""")

# KEYS table, homes
REMOVE_TABLE = Script("return redis.call('DEL', KEYS[2])")

# KEYS entities, each once; ARGV from 3 on: the fence of each. All are checked before one is
# written, so that `late` means that none was written. Answers the data of each, or a list with the
# fence of one that is stale.
LOAD_STATES = Script(
    LATE
    + """
local found, answers = {}, {}
for i, key in ipairs(KEYS) do
  local kept = redis.call('HMGET', key, 'v', 'data')
  local v = kept[1]
  if v and v:sub(1, 19) == ARGV[i + 2] and late(v:sub(20, 44)) then return 'late' end
  found[i] = v
  answers[i] = kept[2]
end
for i, key in ipairs(KEYS) do
  local v, fence = found[i], ARGV[i + 2]
  if v and v:sub(1, 19) > fence then
    answers[i] = {v:sub(1, 19)}
  else
    redis.call('HSET', key, 'v', fence .. session .. seq .. (v and v:sub(45) or ''))
  end
end
return answers
""",
    join=_each,
    own_args=True,
)

# KEYS entities, each once; ARGV from 3 on: for each of them `v` as it is to be stored, with a `-`
# behind it to remove the state, and the data. All are checked before one is written, so that `late`
# means that none was written. Answers place and stored fence of each that is stale, in turn. A
# lower `v` has a lower fence, another session, or an earlier command of this session: none of them
# keeps the save out, unless it is of the same operation. Most differ in the last byte of that, so
# that the texts need not be cut.
SAVE_STATES = Script(
    LATE
    + """
local keys, args, call, byte = KEYS, ARGV, redis.call, string.byte
local skipped, stale = nil, {}
for i = 1, #keys do
  local v, new = call('HGET', keys[i], 'v'), args[2 * i + 1]
  if v and (v >= new or byte(v, 60) == byte(new, 60)) then
    local stored = v:sub(1, 19)
    skipped = skipped or {}
    if v:sub(45) == new:sub(45, 60) then
      skipped[i] = true
    elseif stored > new:sub(1, 19) then
      skipped[i] = true
      stale[#stale + 1] = i
      stale[#stale + 1] = stored
    elseif v >= new and late(v:sub(20, 44)) then
      return 'late'
    end
  end
end
for i = 1, #keys do
  if not (skipped and skipped[i]) then
    local new = args[2 * i + 1]
    if #new == 60 then
      call('HSET', keys[i], 'v', new, 'data', args[2 * i + 2])
    else
      call('HSET', keys[i], 'v', new:sub(1, 60))
      call('HDEL', keys[i], 'data')
    end
  end
end
return stale
""",
    join=_stale_places,
    own_args=True,
    size=size_of_data,
    sign=_signed,
    usual=b"*0\r\n",
)

# KEYS entity, list and due of each save; ARGV from 3 on, for each of them: `v` as it is to be
# stored, with a `-` behind it to remove the state, or a `=` to keep it; the data; when its first
# reminder is due, or 0; the record of its reminders; the id. Otherwise as SAVE_STATES. A list with
# a higher fence refuses the save as well.
SAVE_REMINDED = Script(
    LATE
    + """
local keys, args, call = KEYS, ARGV, redis.call
local skipped, stale, fences = {}, {}, {}
for i = 1, #keys / 3 do
  local v, new = call('HGET', keys[3 * i - 2], 'v'), args[5 * i - 2]
  local fence = new:sub(1, 19)
  if v and v:sub(45) == new:sub(45, 60) then
    skipped[i] = true
  else
    local stored = v and v:sub(1, 19) or ''
    if stored == fence and late(v:sub(20, 44)) then return 'late' end
    if stored <= fence then
      local list = keys[3 * i - 1]
      if not fences[list] then
        local held = call('HGET', list, 'v')
        fences[list] = held and held:sub(1, 19) or ''
      end
      stored = fences[list]
    end
    if stored > fence then
      skipped[i] = true
      stale[#stale + 1] = i
      stale[#stale + 1] = stored
    end
  end
end
for i = 1, #keys / 3 do
  if not skipped[i] then
    local key, due, at = keys[3 * i - 2], keys[3 * i], 5 * i - 2
    local new, id = args[at], args[at + 4]
    local mark, first, rem = new:sub(61), args[at + 2], args[at + 3]
    if first == '0' then
      if mark == '' then
        call('HSET', key, 'v', new, 'data', args[at + 1])
      else
        call('HSET', key, 'v', new:sub(1, 60))
      end
      call('HDEL', key, 'rem')
      call('ZREM', due, id)
    else
      if mark == '' then
        call('HSET', key, 'v', new, 'data', args[at + 1], 'rem', rem)
      else
        call('HSET', key, 'v', new:sub(1, 60), 'rem', rem)
      end
      call('ZADD', due, first, id)
    end
    if mark == '-' then call('HDEL', key, 'data') end
  end
end
return stale
""",
    size=_size_of_reminded,
    sign=_signed_reminded,
    usual=b"*0\r\n",
)

# KEYS entities. Returns the record of reminders of each, nil for one without.
LOAD_REMINDERS = answer_of_each("redis.call('HGET', key, 'rem')")

# KEYS due; ARGV 3 the time and 4 the id to begin after, 5 limit. Returns id and time in turn.
PAGE_DUE = reading_script("""
local after, id, limit = ARGV[3], ARGV[4], tonumber(ARGV[5])
local first, found = 0, {}
if redis.call('ZSCORE', KEYS[1], id) == after then
  first = redis.call('ZRANK', KEYS[1], id) + 1
else
  first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. after)
end
while #found < 2 * limit do
  local part = redis.call('ZRANGE', KEYS[1], first, first + limit - 1, 'WITHSCORES')
  for i = 1, #part, 2 do
    if (part[i + 1] ~= after or part[i] > id) and #found < 2 * limit then
      found[#found + 1] = part[i]
      found[#found + 1] = part[i + 1]
    end
  end
  if #part < 2 * limit then break end
  first = first + limit
end
return found
""")

# KEYS due of shards. Returns 1 for each that has entries.
ANY_DUE = answer_of_each("math.min(redis.call('ZCARD', key), 1)")

# KEYS lists; ARGV 3 a shard that is to have a list
ADD_LIST = Script("return redis.call('HSET', KEYS[1], ARGV[3], '1')")

# KEYS list, remembered; ARGV 3 fence, 4 '1' to add or '0' to remove, then entity ids
REMEMBER = signed_script("""
local v = redis.call('HGET', KEYS[1], 'v')
if v then
  local fence = v:sub(1, 19)
  if fence > ARGV[3] then return {'stale', fence} end
  if fence == ARGV[3] and late(v:sub(20)) then return 'late' end
end
redis.call('HSET', KEYS[1], 'v', ARGV[3] .. session .. seq)
for i = 5, #ARGV do
  if ARGV[4] == '1' then
    redis.call('ZADD', KEYS[2], 0, ARGV[i])
  else
    redis.call('ZREM', KEYS[2], ARGV[i])
  end
end
return {'ok'}
""")

# KEYS remembered; ARGV 3 the lowest id in ZRANGEBYLEX's notation, 4 limit
PAGE_REMEMBERED = Script(
    "return redis.call('ZRANGEBYLEX', KEYS[1], ARGV[3], '+', 'LIMIT', 0, ARGV[4])", writes=False
)

# KEYS lists. The answer includes shards whose list is empty.
REMEMBERED_SHARDS = Script("return redis.call('HKEYS', KEYS[1])", writes=False)

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function text(number) return string.format('%.0f', number) end
local function ended(at, limit) return tonumber(at) <= math.min(now, tonumber(limit) or now) end
"""

# KEYS lease; ARGV 3 owner, 4 ttl in ms, 5 the limit of `server_clock` in ms or ''. If the end is
# further ahead than the length of the lease, the clock was set back since; the end is then moved to
# that length from now.
ACQUIRE_LEASE = Script(
    _NOW
    + """
local held = redis.call('HMGET', KEYS[1], 'owner', 'until', 'ttl')
if not held[1] or ended(held[2], ARGV[5]) then
  redis.call('HINCRBY', KEYS[1], 'counter', 1)
elseif held[1] ~= ARGV[3] then
  if tonumber(held[2]) > now + held[3] then
    redis.call('HSET', KEYS[1], 'until', text(now + held[3]))
  end
  return false
end
redis.call('HSET', KEYS[1], 'owner', ARGV[3], 'until', text(now + ARGV[4]), 'ttl', ARGV[4])
return redis.call('HGET', KEYS[1], 'counter')
"""
)

# KEYS lease; ARGV 3 owner, 4 counter, 5 ttl in ms, 6 the limit of `server_clock` in ms or ''
RENEW_LEASE = Script(
    _NOW
    + """
local held = redis.call('HMGET', KEYS[1], 'owner', 'counter', 'until')
if held[1] ~= ARGV[3] or held[2] ~= ARGV[4] or ended(held[3], ARGV[6]) then return 0 end
redis.call('HSET', KEYS[1], 'until', text(now + ARGV[5]), 'ttl', ARGV[5])
return 1
"""
)

# KEYS lease; ARGV 3 owner, 4 counter
RELEASE_LEASE = Script("""
local held = redis.call('HMGET', KEYS[1], 'owner', 'counter')
if held[1] == ARGV[3] and held[2] == ARGV[4] then redis.call('HDEL', KEYS[1], 'owner') end
return 1
""")

# A server that has nothing of this store gets the present version of its keys.
_FRESH = """
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], 'keys', '2') end
"""

# KEYS probe. Returns the version of the keys, empty if the store has nothing.
VERSION = reading_script("""
return redis.call('HGET', KEYS[1], 'keys') or (redis.call('HLEN', KEYS[1]) > 0 and '1' or '')
""")

# KEYS probe; ARGV 3 the version of the keys, once all are moved
SET_VERSION = Script("return redis.call('HSET', KEYS[1], 'keys', ARGV[3])")

# KEYS table; ARGV 3 the layout by which states are placed
PLACE = Script("return redis.call('HSET', KEYS[1], 'states', ARGV[3])")

# KEYS table. Returns the layout by which states are placed, and the table's.
LAYOUTS = Script("return redis.call('HMGET', KEYS[1], 'states', 'layout')", writes=False)

# KEYS probe, or another hash of its own; ARGV 3 a random text. Shows that the server takes writes.
# Returns the text that was written first, the server's run id, empty if it does not say, and its
# clock in ms. Another text than before means that the keys were lost meanwhile, another run id that
# this is another server.
PROBE = Script(
    _NOW
    + _FRESH
    + """
redis.call('HSETNX', KEYS[1], 'mark', ARGV[3])
local info = redis.pcall('INFO', 'server')
local run_id = type(info) == 'string' and info:match('run_id:(%x+)') or ''
return {redis.call('HGET', KEYS[1], 'mark'), run_id, text(now)}
"""
)

# KEYS the hash of PROBE; ARGV 3 a text, 4 '1' to write it in any case or '0' only if there is none
IDENTITY = Script(
    _FRESH
    + """
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[1], 'identity', ARGV[3])
else
  redis.call('HSETNX', KEYS[1], 'identity', ARGV[3])
end
return redis.call('HGET', KEYS[1], 'identity')
"""
)

# KEYS entities. Returns 1 for each that has a state.
HAVE_STATES = answer_of_each("redis.call('HEXISTS', key, 'data')")

# KEYS entities. Returns the state of each, nil for one without.
ENTITY_STATES = answer_of_each("redis.call('HGET', key, 'data')")

# KEYS entities; ARGV 3 now, 4 since, in ms. `idle` is the time of the first call after the last
# load or save, behind the `v` of that time; every load and save changes `v`. Returns the places of
# those whose states are removed.
EXPIRE_STATES = Script(
    """
local now, since, removed = tonumber(ARGV[3]), tonumber(ARGV[4]), {}
for i, key in ipairs(KEYS) do
  local kept = redis.call('HMGET', key, 'v', 'idle')
  local v, idle = kept[1], kept[2]
  if v and redis.call('HEXISTS', key, 'data') == 1 then
    local known = idle and idle:sub(1, #v) == v and tonumber(idle:sub(#v + 2))
    local began = known and math.min(now, known) or now
    if began <= since then
      redis.call('HDEL', key, 'data', 'idle')
      removed[#removed + 1] = i
    elseif began ~= known then
      redis.call('HSET', key, 'idle', v .. ' ' .. string.format('%.0f', began))
    end
  end
end
return removed
""",
    join=_places,
)

# Repair. The cluster is stopped, so no signature or operation of an earlier write matters any more.

# KEYS entities or lists. Returns the fence of each, or all of `v` if that has another length than
# written.
FENCES = answer_of_each(
    "fence_in(redis.call('HGET', key, 'v'))",
    """
local function fence_in(v) return v and v:sub(1, (#v == 44 or #v == 60) and 19 or #v) or '' end
""",
)

# KEYS table, homes; ARGV 3 epoch, 4 layout, then the shards without a home
MEND_TABLE = Script("""
redis.call('HDEL', KEYS[1], 'claimer', 'sign', 'op')
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'layout', ARGV[4])
for i = 5, #ARGV do redis.call('HDEL', KEYS[2], ARGV[i]) end
return 1
""")

# KEYS entities or lists; ARGV 3 fence
MEND_FENCES = Script(
    """
for _, key in ipairs(KEYS) do
  redis.call('HSET', key, 'v', ARGV[3] .. string.rep('0', 25))
end
return {}
""",
    join=_places,
)

# Migration. The cluster is stopped, too.

# KEYS hashes. Returns the fields and values of each, in turn.
READ_WHOLE = answer_of_each("redis.call('HGETALL', key)")

# KEYS a hash; ARGV 3 the `v` of its other copy, then the fields and values of that one. The copy
# with the lower fence gives way.
COPY = Script("""
local v = redis.call('HGET', KEYS[1], 'v')
if v and v:sub(1, 19) >= ARGV[3]:sub(1, 19) then return 0 end
redis.call('DEL', KEYS[1])
for i = 4, #ARGV, 1000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, i, math.min(#ARGV, i + 999)))
end
return 1
""")

# KEYS a hash; ARGV 3 its `v`, as it was copied
DROP = Script("""
if (redis.call('HGET', KEYS[1], 'v') or '') ~= ARGV[3] then return 0 end
return redis.call('DEL', KEYS[1])
""")

# KEYS due; ARGV 3 the id. Returns when its first reminder is due, empty if it has none.
DUE_AT = Script("return redis.call('ZSCORE', KEYS[1], ARGV[3]) or ''", writes=False)

# KEYS due; ARGV 3 the id, 4 when its first reminder is due
ADD_DUE = Script("return redis.call('ZADD', KEYS[1], ARGV[4], ARGV[3])")

# KEYS due; ARGV 3 the id
DROP_DUE = Script("return redis.call('ZREM', KEYS[1], ARGV[3])")

# KEYS remembered; ARGV from 3 on: entity ids
COPY_LIST = Script("""
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], 0, ARGV[i]) end
return 1
""")

# KEYS the fences of version 1, remembered; ARGV 3 shard
DROP_LIST = Script("""
redis.call('DEL', KEYS[2])
return redis.call('HDEL', KEYS[1], ARGV[3])
""")

# KEYS a hash and a sorted set of its own. Runs every command that another script runs, but INFO,
# which a server may hide. Leaves nothing behind.
ACCESS = Script("""
redis.call('TIME')
redis.call('HSET', KEYS[1], 'n', 1)
redis.call('HINCRBY', KEYS[1], 'n', 1)
redis.call('HSETNX', KEYS[1], 'n', 1)
redis.call('HGET', KEYS[1], 'n')
redis.call('HMGET', KEYS[1], 'n')
redis.call('HEXISTS', KEYS[1], 'n')
redis.call('HLEN', KEYS[1])
redis.call('HKEYS', KEYS[1])
redis.call('HGETALL', KEYS[1])
redis.call('HDEL', KEYS[1], 'n')
redis.call('ZADD', KEYS[2], 0, 'n')
redis.call('ZRANGEBYLEX', KEYS[2], '-', '+')
redis.call('ZCARD', KEYS[2])
redis.call('ZCOUNT', KEYS[2], 0, 0)
redis.call('ZRANGE', KEYS[2], 0, 0)
redis.call('ZRANK', KEYS[2], 'n')
redis.call('ZSCORE', KEYS[2], 'n')
redis.call('ZREM', KEYS[2], 'n')
return redis.call('DEL', KEYS[1], KEYS[2])
""")
