"""The schema of the PostgreSQL store, and its steps as SQL, one statement and one transaction each.

The rules that make a step atomic under READ COMMITTED, the server's default:

- A step is one statement. No transaction stays open between two messages of a client, so a client
  that stands still holds no lock.
- A fence is compared where the row is written, by `ON CONFLICT DO UPDATE ... WHERE` or by `UPDATE
  ... WHERE`. PostgreSQL locks the row first, and then compares with its newest version, whatever
  the snapshot of the statement shows.
- A statement that changes several rows takes them in the order of their keys, so two of them that
  share rows wait for each other, in one direction only. Homes and remembered lists are changed
  under the lock of the one row that has their epoch or fence.
- A value of which only the newest version may decide is not read from the snapshot. So a home is
  removed by writing NULL, not by DELETE, and a remembered entity is removed by two steps
  (`FORGET`).

Statements that are `signed` receive the session of the store object as $1 and a sequence number as
$2, which grows with every statement of that object, repeats included, and write both into the row.
A statement whose sender has given up may still be executed later, as when it waited for a lock or
its server stood still, and would overwrite a newer write of the same sender under the same fence.
The row shows that by its higher number, and the statement writes nothing. Its sender, if it still
waits, reads the row (`SAVED`, `FENCES`), finds the cause, and sends it again.

`@` stands for the schema. Names are compared and sorted by their bytes (`COLLATE "C"`), so an
update of the system's collations damages no index.

Source: N.1, N.6; docs/architecture.md.
"""

from __future__ import annotations

import msgspec

SCHEMA_VERSION = 1
ADVISORY_LOCK = 0x73686264
"""Held while the schema is created."""
TABLES = (
    "store",
    "shard_table",
    "home",
    "entity",
    "shard_fence",
    "remembered",
    "lease",
    "reminder",
)


class Statement(msgspec.Struct, frozen=True):
    """A statement. `signed`: $1 and $2 are session and sequence. `counts`: the answer is the number
    of rows written, otherwise a list of rows."""

    source: str
    writes: bool = True
    signed: bool = False
    counts: bool = False

    def text(self, schema: str) -> str:
        """Return the statement for tables of `schema`."""
        return self.source.replace("@", f'"{schema}".')


def read_only(source: str) -> Statement:
    """Return a statement that writes nothing."""
    return Statement(source, writes=False)


def signed(source: str) -> Statement:
    """Return a statement that writes session and sequence into its rows."""
    return Statement(source, signed=True)


def signed_and_counted(source: str) -> Statement:
    """Return a signed statement whose answer is the number of rows written."""
    return Statement(source, signed=True, counts=True)


def counted(source: str) -> Statement:
    """Return a statement whose answer is the number of rows written."""
    return Statement(source, counts=True)


VERSION = Statement("SELECT number FROM @version", writes=False)

# One transaction, because it is sent as one text. The lock makes concurrent first starts wait.
CREATE = f"""
SELECT pg_advisory_xact_lock({ADVISORY_LOCK});
%s
CREATE TABLE IF NOT EXISTS @version (number integer PRIMARY KEY);
CREATE TABLE IF NOT EXISTS @store (
  cluster text COLLATE "C" PRIMARY KEY, mark text, identity text);
CREATE TABLE IF NOT EXISTS @shard_table (
  cluster text COLLATE "C", type text COLLATE "C", epoch bigint NOT NULL, layout text NOT NULL,
  claimer bigint NOT NULL, seq bigint NOT NULL, op_id bigint, version bigint NOT NULL,
  PRIMARY KEY (cluster, type));
CREATE TABLE IF NOT EXISTS @home (
  cluster text COLLATE "C", type text COLLATE "C", shard text COLLATE "C", node text,
  fence bigint NOT NULL, PRIMARY KEY (cluster, type, shard));
CREATE TABLE IF NOT EXISTS @entity (
  cluster text COLLATE "C", type text COLLATE "C", id text COLLATE "C", fence bigint NOT NULL,
  session bigint NOT NULL, seq bigint NOT NULL, op_id bigint, idle_since double precision,
  data bytea, PRIMARY KEY (cluster, type, id)) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS @shard_fence (
  cluster text COLLATE "C", type text COLLATE "C", shard text COLLATE "C", fence bigint NOT NULL,
  session bigint NOT NULL, seq bigint NOT NULL, PRIMARY KEY (cluster, type, shard));
CREATE TABLE IF NOT EXISTS @remembered (
  cluster text COLLATE "C", type text COLLATE "C", shard text COLLATE "C", id text COLLATE "C",
  PRIMARY KEY (cluster, type, shard, id));
CREATE TABLE IF NOT EXISTS @lease (
  cluster text COLLATE "C", name text COLLATE "C", owner text, counter bigint NOT NULL,
  expires bigint NOT NULL, ttl bigint NOT NULL, PRIMARY KEY (cluster, name));
CREATE TABLE IF NOT EXISTS @reminder (
  cluster text COLLATE "C", type text COLLATE "C", id text COLLATE "C", shard text COLLATE "C",
  due bigint NOT NULL, record bytea, PRIMARY KEY (cluster, type, id));
CREATE INDEX IF NOT EXISTS reminder_due ON @reminder (cluster, type, shard, due, id) WHERE due > 0;
INSERT INTO @version VALUES ({SCHEMA_VERSION}) ON CONFLICT DO NOTHING;
"""
CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS "
HAS_SCHEMA = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1"

_STARTED = "extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text"

# The question of a new connection: is this the server that takes writes, and which one is it? The
# time of its start, in microseconds, differs after a restart, a restore and a failover.
SERVER = f"""
SELECT pg_catalog.pg_is_in_recovery() AS standby,
  current_setting('transaction_read_only') = 'on' AS read_only, {_STARTED} AS server
"""

# Returns one row if this process of the server answers.
SERVER_PROCESS = "SELECT 1 WHERE pg_catalog.pg_backend_pid() = %d"

# $1 schema
SETTINGS = read_only("""
SELECT current_setting('server_version_num')::int AS version,
  current_setting('server_version') AS version_text,
  current_setting('server_encoding') AS encoding,
  current_setting('fsync') AS fsync,
  current_setting('full_page_writes') AS full_page_writes,
  current_setting('synchronous_commit') AS synchronous_commit,
  (SELECT string_agg(c.relname, ', ' ORDER BY c.relname)
   FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
   WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relpersistence <> 'p') AS unlogged
""")

# $1 schema, $2 tables. The rights that the user lacks.
RIGHTS = read_only("""
SELECT c.relname AS name, p.name AS may
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p(name)
WHERE n.nspname = $1 AND c.relname = ANY($2::text[])
  AND NOT pg_catalog.has_table_privilege(c.oid, p.name)
ORDER BY 1, 2
""")

# $1 schema, $2 tables. Those whose rows the server filters for this user, by row-level security.
HIDDEN_ROWS = """
SELECT string_agg(c.relname, ', ' ORDER BY c.relname) AS names
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2::text[]) AND pg_catalog.row_security_active(c.oid)
"""

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

# $1 cluster, $2 a random text. Shows that the server takes writes. Returns the text that was
# written first, which changes when the row was lost, the server's clock in ms, and which server it
# is: a pooler may have led to another one.
PROBE = Statement(f"""
INSERT INTO @store AS s (cluster, mark) VALUES ($1, $2)
ON CONFLICT (cluster) DO UPDATE SET mark = coalesce(s.mark, excluded.mark)
RETURNING mark, {_NOW} AS now, {_STARTED} AS server
""")

# $1 cluster, $2 a text, $3 whether to write it in any case
IDENTITY = Statement("""
INSERT INTO @store AS s (cluster, identity) VALUES ($1, $2)
ON CONFLICT (cluster) DO UPDATE SET identity = CASE
  WHEN $3::boolean THEN excluded.identity ELSE coalesce(s.identity, excluded.identity) END
RETURNING identity
""")

# $1 cluster, $2 type. A row for each home, and one with an empty shard for a table without homes.
LOAD_TABLE = read_only("""
SELECT t.epoch, t.layout, t.claimer, t.op_id, t.version, h.shard, h.node, h.fence
FROM @shard_table t LEFT JOIN @home h
  ON h.cluster = t.cluster AND h.type = t.type AND h.node IS NOT NULL
WHERE t.cluster = $1 AND t.type = $2
""")

# $3 cluster, $4 type, $5 epoch, $6 layout, $7 the version of the row that was read, 0 for none.
# Writes only if nothing has changed since, so that the decision of the reader still holds.
CLAIM_EPOCH = signed_and_counted("""
INSERT INTO @shard_table AS t (cluster, type, epoch, layout, claimer, seq, version)
VALUES ($3, $4, $5, $6, $1, $2, 1)
ON CONFLICT (cluster, type) DO UPDATE SET epoch = excluded.epoch, layout = excluded.layout,
  claimer = excluded.claimer, seq = excluded.seq, version = t.version + 1
WHERE t.version = $7
""")

# $3 cluster, $4 type, $5 epoch, $6 op, $7 shards, $8 nodes, NULL for none, $9 fences
WRITE_HOMES = signed("""
WITH held AS (
  UPDATE @shard_table SET op_id = $6, seq = $2, version = version + 1
  WHERE cluster = $3 AND type = $4 AND epoch = $5 AND claimer = $1 AND seq < $2
    AND op_id IS DISTINCT FROM $6
  RETURNING 1),
put AS (
  INSERT INTO @home AS h (cluster, type, shard, node, fence)
  SELECT $3, $4, u.shard, u.node, u.fence
  FROM unnest($7::text[], $8::text[], $9::bigint[]) AS u(shard, node, fence), held
  ON CONFLICT (cluster, type, shard) DO UPDATE SET node = excluded.node, fence = excluded.fence)
SELECT count(*) AS written FROM held
""")

# $1 cluster, $2 type
REMOVE_TABLE = Statement("""
WITH held AS (
  UPDATE @shard_table SET version = version + 1 WHERE cluster = $1 AND type = $2 RETURNING 1),
gone AS (
  DELETE FROM @home WHERE cluster = $1 AND type = $2 RETURNING node)
SELECT count(node) AS homes FROM gone
""")

# $3 cluster, $4 type, $5 ids, each once, $6 fences. Returns the rows that were loaded.
LOAD_STATES = signed("""
INSERT INTO @entity AS e (cluster, type, id, fence, session, seq)
SELECT $3, $4, u.id, u.fence, $1, $2
FROM unnest($5::text[], $6::bigint[]) AS u(id, fence) ORDER BY u.id COLLATE "C"
ON CONFLICT (cluster, type, id) DO UPDATE SET fence = excluded.fence, session = excluded.session,
  seq = excluded.seq, idle_since = NULL
WHERE e.fence < excluded.fence
  OR (e.fence = excluded.fence AND NOT (e.session = excluded.session AND e.seq > excluded.seq))
RETURNING id, data
""")

# $1 cluster, $2 type, $3 ids
FENCES = read_only(
    "SELECT id, fence FROM @entity WHERE cluster = $1 AND type = $2 AND id = ANY($3::text[])"
)

# $3 cluster, $4 types, $5 ids, each entity once, $6 fences, $7 ops, $8 states, NULL to remove
SAVE_STATES = signed_and_counted("""
INSERT INTO @entity AS e (cluster, type, id, fence, session, seq, op_id, data)
SELECT $3, u.type, u.id, u.fence, $1, $2, u.op_id, u.data
FROM unnest($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bytea[])
  AS u(type, id, fence, op_id, data)
ORDER BY u.type COLLATE "C", u.id COLLATE "C"
ON CONFLICT (cluster, type, id) DO UPDATE SET fence = excluded.fence, session = excluded.session,
  seq = excluded.seq, op_id = excluded.op_id, data = excluded.data, idle_since = NULL
WHERE e.op_id IS DISTINCT FROM excluded.op_id AND (e.fence < excluded.fence
  OR (e.fence = excluded.fence AND NOT (e.session = excluded.session AND e.seq > excluded.seq)))
""")

# $3 cluster, $4 types, $5 ids, each entity once, $6 fences, $7 ops, $8 states, NULL to remove,
# $9 shards, $10 when the first reminder is due, 0 for none, $11 the records. As SAVE_STATES, under
# the lock of the fence of each shard, whose row must be there: its newest version is compared. A
# row of an entity without reminders stays, due at 0: a DELETE would be decided by the snapshot.
_SAVE_REMINDED = """
WITH u AS (
  SELECT * FROM unnest($4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bytea[],
    $9::text[], $10::bigint[], $11::bytea[])
    AS u(type, id, fence, op_id, data, shard, due, record)),
held AS MATERIALIZED (
  SELECT f.type, f.shard, f.fence FROM @shard_fence f
  WHERE f.cluster = $3 AND (f.type, f.shard) IN (SELECT u.type, u.shard FROM u)
  ORDER BY f.type, f.shard FOR SHARE),
saved AS (
  INSERT INTO @entity AS e (cluster, type, id, fence, session, seq, op_id, data)
  SELECT $3, u.type, u.id, u.fence, $1, $2, u.op_id, u.data
  FROM u JOIN held h ON h.type = u.type AND h.shard = u.shard AND h.fence <= u.fence
  ORDER BY u.type COLLATE "C", u.id COLLATE "C"
  ON CONFLICT (cluster, type, id) DO UPDATE SET fence = excluded.fence, session = excluded.session,
    seq = excluded.seq, op_id = excluded.op_id, data = %s, idle_since = NULL
  WHERE e.op_id IS DISTINCT FROM excluded.op_id AND (e.fence < excluded.fence
    OR (e.fence = excluded.fence AND NOT (e.session = excluded.session AND e.seq > excluded.seq)))
  RETURNING e.type, e.id),
put AS (
  INSERT INTO @reminder AS r (cluster, type, id, shard, due, record)
  SELECT $3, u.type, u.id, u.shard, u.due, u.record
  FROM u JOIN saved s ON s.type = u.type AND s.id = u.id
  ORDER BY u.type COLLATE "C", u.id COLLATE "C"
  ON CONFLICT (cluster, type, id) DO UPDATE SET shard = excluded.shard, due = excluded.due,
    record = excluded.record)
SELECT count(*) AS written FROM saved
"""
SAVE_REMINDED = Statement(_SAVE_REMINDED % "excluded.data", signed=True)
SAVE_REMINDERS = Statement(_SAVE_REMINDED % "e.data", signed=True)
"""The same, and the states stay."""

# $1 cluster, $2 types, $3 shards. A row for each, in order.
LIST_FENCES_OF = read_only("""
SELECT f.fence FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(type, shard, place)
LEFT JOIN @shard_fence f ON f.cluster = $1 AND f.type = u.type AND f.shard = u.shard
ORDER BY u.place
""")

# $1 cluster, $2 type, $3 ids
LOAD_REMINDERS = read_only("""
SELECT id, record FROM @reminder WHERE cluster = $1 AND type = $2 AND id = ANY($3::text[])
""")

# $1 cluster, $2 type, $3 shard, $4 the time and $5 the id to begin after, $6 limit
PAGE_DUE = read_only("""
SELECT due, id FROM @reminder
WHERE cluster = $1 AND type = $2 AND shard = $3 AND due > 0 AND (due, id) > ($4::bigint, $5)
ORDER BY due, id LIMIT $6
""")

# $1 cluster, $2 type. Looks once into the index for each shard.
DUE_SHARDS = read_only("""
SELECT f.shard FROM @shard_fence f WHERE f.cluster = $1 AND f.type = $2 AND EXISTS (
  SELECT 1 FROM @reminder r
  WHERE r.cluster = f.cluster AND r.type = f.type AND r.shard = f.shard AND r.due > 0)
""")

# $1 cluster, $2 types, $3 ids. Why saves were not written: a row for each, in order.
SAVED = read_only("""
SELECT e.fence, e.op_id
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(type, id, place)
LEFT JOIN @entity e ON e.cluster = $1 AND e.type = u.type AND e.id = u.id
ORDER BY u.place
""")

_SIGN_LIST = """
INSERT INTO @shard_fence AS f (cluster, type, shard, fence, session, seq)
VALUES ($3, $4, $5, $6, $1, $2)
ON CONFLICT (cluster, type, shard) DO UPDATE SET fence = excluded.fence,
  session = excluded.session, seq = excluded.seq
WHERE f.fence < excluded.fence
  OR (f.fence = excluded.fence AND NOT (f.session = excluded.session AND f.seq > excluded.seq))
RETURNING f.session, f.seq
"""

# $3 cluster, $4 type, $5 shard, $6 fence, $7 ids
REMEMBER = signed(f"""
WITH held AS ({_SIGN_LIST}),
put AS (
  INSERT INTO @remembered (cluster, type, shard, id)
  SELECT $3, $4, $5, u.id FROM unnest($7::text[]) AS u(id), held
  ON CONFLICT DO NOTHING)
SELECT count(*) AS written FROM held
""")

# $3 cluster, $4 type, $5 shard, $6 fence. The first step of forgetting: no earlier statement of
# this sender can add to the list any more. Returns the signature.
SIGN_LIST = Statement(_SIGN_LIST, signed=True)

# $1 cluster, $2 type, $3 shard, $4 fence, $5 session and $6 sequence of SIGN_LIST, $7 ids. The
# second step: its snapshot is younger than the first, so it shows all that was added before.
FORGET = Statement("""
WITH held AS (
  SELECT 1 FROM @shard_fence
  WHERE cluster = $1 AND type = $2 AND shard = $3 AND fence = $4 AND session = $5 AND seq = $6
  FOR UPDATE),
gone AS (
  DELETE FROM @remembered r USING held
  WHERE r.cluster = $1 AND r.type = $2 AND r.shard = $3 AND r.id = ANY($7::text[]))
SELECT count(*) AS written FROM held
""")

# $1 cluster, $2 type, $3 shard
LIST_FENCE = read_only(
    "SELECT fence FROM @shard_fence WHERE cluster = $1 AND type = $2 AND shard = $3"
)

# $1 cluster, $2 type, $3 shard, $4 the id to begin after, $5 limit
PAGE_REMEMBERED = read_only("""
SELECT id FROM @remembered
WHERE cluster = $1 AND type = $2 AND shard = $3 AND id > $4 ORDER BY id LIMIT $5
""")

# $1 cluster, $2 type
REMEMBERED_SHARDS = read_only("""
SELECT f.shard FROM @shard_fence f
WHERE f.cluster = $1 AND f.type = $2 AND EXISTS (SELECT 1 FROM @remembered r
  WHERE r.cluster = f.cluster AND r.type = f.type AND r.shard = f.shard)
ORDER BY f.shard
""")

# The time of a statement is read once, before it waits for the row: `excluded.expires` less its
# length. An earlier time frees no lease too soon and lets none last longer than its holder thinks.
_TIME = "least(excluded.expires - excluded.ttl, $5::bigint)"
_FREE = f"(l.owner IS NULL OR l.expires <= {_TIME})"
_MINE = f"({_FREE} OR l.owner = excluded.owner)"

# $1 cluster, $2 name, $3 owner, $4 ttl in ms, $5 the limit of `server_clock` in ms or NULL. If the
# end is further ahead than the length of the lease, the clock was set back since; the end is then
# moved to that length from now.
ACQUIRE_LEASE = Statement(f"""
INSERT INTO @lease AS l (cluster, name, owner, counter, expires, ttl)
SELECT $1, $2, $3, 1, now.ms + $4::bigint, $4::bigint FROM (SELECT {_NOW} AS ms) AS now
ON CONFLICT (cluster, name) DO UPDATE SET
  owner = CASE WHEN {_MINE} THEN excluded.owner ELSE l.owner END,
  counter = l.counter + CASE WHEN {_FREE} THEN 1 ELSE 0 END,
  expires = CASE WHEN {_MINE} THEN excluded.expires
    ELSE least(l.expires, excluded.expires - excluded.ttl + l.ttl) END,
  ttl = CASE WHEN {_MINE} THEN excluded.ttl ELSE l.ttl END
RETURNING owner = $3 AS granted, counter
""")

# $1 cluster, $2 name, $3 owner, $4 counter, $5 ttl in ms, $6 the limit in ms or NULL
RENEW_LEASE = counted(f"""
UPDATE @lease SET expires = {_NOW} + $5::bigint, ttl = $5::bigint
WHERE cluster = $1 AND name = $2 AND owner = $3 AND counter = $4
  AND expires > least({_NOW}, $6::bigint)
""")

# $1 cluster, $2 name, $3 owner, $4 counter
RELEASE_LEASE = counted("""
UPDATE @lease SET owner = NULL WHERE cluster = $1 AND name = $2 AND owner = $3 AND counter = $4
""")

# $1 cluster, $2 type, $3 the id to begin at, $4 whether without that one, $5 limit of rows. Rows
# without a state count, too, because most may have none.
PAGE_STORED = read_only("""
SELECT id, data IS NOT NULL AS stored FROM @entity
WHERE cluster = $1 AND type = $2 AND id >= $3 AND NOT ($4::boolean AND id = $3)
ORDER BY id LIMIT $5
""")

# $1 cluster, $2 type, $3 ids. Each id is looked up by the primary key. With `id = ANY($3)`, a plan
# that was made while the table was small reads all rows of the type, until the next ANALYZE.
READ_STATES = read_only("""
SELECT named.id, found.data FROM unnest($3::text[]) AS named(id)
CROSS JOIN LATERAL (
  SELECT data FROM @entity WHERE cluster = $1 AND type = $2 AND id = named.id LIMIT 1) AS found
""")

# $1 cluster, $2 type, $3 ids, $4 now, $5 since. A state is removed if it is idle since $5 or
# longer; otherwise the time of the first call is kept.
EXPIRE_STATES = Statement("""
WITH held AS (
  SELECT id FROM @entity
  WHERE cluster = $1 AND type = $2 AND id = ANY($3::text[]) AND data IS NOT NULL
  ORDER BY id FOR UPDATE)
UPDATE @entity e SET
  data = CASE WHEN least(e.idle_since, $4::float8) <= $5::float8 THEN NULL ELSE e.data END,
  idle_since = CASE WHEN least(e.idle_since, $4::float8) <= $5::float8 THEN NULL
    ELSE least(e.idle_since, $4::float8) END
FROM held WHERE e.cluster = $1 AND e.type = $2 AND e.id = held.id AND e.data IS NOT NULL
RETURNING e.id, e.data IS NULL AS removed
""")

# Repair. The cluster is stopped, so no signature or operation of an earlier write matters any more.

ENTITY_FENCES = read_only("""
SELECT id, fence FROM @entity WHERE cluster = $1 AND type = $2 AND id > $3 ORDER BY id LIMIT $4
""")
LIST_FENCES = Statement(
    "SELECT shard, fence FROM @shard_fence WHERE cluster = $1 AND type = $2", writes=False
)
# $1 cluster, $2 type, $3 epoch, $4 layout, $5 the shards without a home
MEND_TABLE = Statement("""
WITH held AS (
  UPDATE @shard_table SET epoch = $3, layout = $4, claimer = 0, op_id = NULL, version = version + 1
  WHERE cluster = $1 AND type = $2 RETURNING 1)
DELETE FROM @home WHERE cluster = $1 AND type = $2 AND shard = ANY($5::text[])
""")
# $1 cluster, $2 type, $3 fence, $4 ids
MEND_ENTITIES = Statement("""
UPDATE @entity SET fence = $3, session = 0, seq = 0, op_id = NULL
WHERE cluster = $1 AND type = $2 AND id = ANY($4::text[])
""")
# $1 cluster, $2 type, $3 fence, $4 shards
MEND_LISTS = Statement("""
UPDATE @shard_fence SET fence = $3, session = 0, seq = 0
WHERE cluster = $1 AND type = $2 AND shard = ANY($4::text[])
""")
