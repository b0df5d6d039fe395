"""The tables and statements of journals, one statement and one transaction for each step. The rules
of `postgres_statements` hold: the deciding values are compared where the head is written, heads are
taken in the order of their keys, and each write is signed.

Entries are written and removed under the lock of their head. A row of an entry outside of the
head's numbers does not count: an interrupted step has left it, and the next one replaces or removes
it.

Source: `journal_protocol`.
"""

from __future__ import annotations

from shardbus.store.postgres_statements import ADVISORY_LOCK, Statement

TABLES = ("journal", "journal_entry")

# One transaction, because it is sent as one text. `before` is the last number before the last
# append, which a new row brings along, so that it can be compared with the row that is there.
CREATE = f"""
SELECT pg_advisory_xact_lock({ADVISORY_LOCK});
CREATE TABLE IF NOT EXISTS @journal (
  cluster text COLLATE "C", kind text COLLATE "C", name text COLLATE "C", shard text NOT NULL,
  fence bigint NOT NULL, session bigint NOT NULL, seq bigint NOT NULL, op_id bigint,
  before bigint NOT NULL, last bigint NOT NULL, trimmed bigint NOT NULL,
  PRIMARY KEY (cluster, kind, name)) WITH (fillfactor = 80);
CREATE TABLE IF NOT EXISTS @journal_entry (
  cluster text COLLATE "C", kind text COLLATE "C", name text COLLATE "C", number bigint,
  data bytea NOT NULL, PRIMARY KEY (cluster, kind, name, number));
"""
# $1 the name of the table of heads, with its schema
HAS_TABLE = "SELECT pg_catalog.to_regclass($1) IS NOT NULL AS found"

_NEWER = """(j.fence < excluded.fence OR (j.fence = excluded.fence
  AND NOT (j.session = excluded.session AND j.seq > excluded.seq)))"""

# $3 cluster, $4 kinds, $5 names, each journal once, $6 shards, $7 fences, $8 ops, $9 the numbers
# before, $10 the last numbers; then of each entry $11 its journal's place, $12 number, $13 data.
# Returns the number of entries written. A journal that is not there begins after 0.
APPEND = Statement(
    f"""
WITH asked AS (
  SELECT * FROM unnest($4::text[], $5::text[], $6::text[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[]) WITH ORDINALITY
    AS u(kind, name, shard, fence, op_id, before, last, place)),
held AS (
  INSERT INTO @journal AS j
    (cluster, kind, name, shard, fence, session, seq, op_id, before, last, trimmed)
  SELECT $3, a.kind, a.name, a.shard, a.fence, $1, $2, a.op_id, a.before, a.last, 0 FROM asked a
  WHERE a.before = 0 OR EXISTS (SELECT 1 FROM @journal k
    WHERE k.cluster = $3 AND k.kind = a.kind AND k.name = a.name)
  ORDER BY a.kind COLLATE "C", a.name COLLATE "C"
  ON CONFLICT (cluster, kind, name) DO UPDATE SET shard = excluded.shard, fence = excluded.fence,
    session = excluded.session, seq = excluded.seq, op_id = excluded.op_id,
    before = excluded.before, last = excluded.last
  WHERE j.op_id IS DISTINCT FROM excluded.op_id AND j.last = excluded.before AND {_NEWER}
  RETURNING kind, name)
INSERT INTO @journal_entry AS e (cluster, kind, name, number, data)
SELECT $3, a.kind, a.name, n.number, n.data
FROM unnest($11::bigint[], $12::bigint[], $13::bytea[]) AS n(place, number, data)
JOIN asked a ON a.place = n.place JOIN held h ON h.kind = a.kind AND h.name = a.name
ON CONFLICT (cluster, kind, name, number) DO UPDATE SET data = excluded.data
""",
    signed=True,
    counts=True,
)

# $1 cluster, $2 kinds, $3 names. Why appends were not written: a row for each, in order.
HEADS = Statement(
    """
SELECT j.fence, j.op_id, j.last
FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(kind, name, place)
LEFT JOIN @journal j ON j.cluster = $1 AND j.kind = u.kind AND j.name = u.name
ORDER BY u.place
""",
    writes=False,
)

# $3 cluster, $4 kind, $5 name, $6 shard, $7 fence
OPEN = Statement(
    f"""
INSERT INTO @journal AS j
  (cluster, kind, name, shard, fence, session, seq, before, last, trimmed)
VALUES ($3, $4, $5, $6, $7, $1, $2, 0, 0, 0)
ON CONFLICT (cluster, kind, name) DO UPDATE SET shard = excluded.shard, fence = excluded.fence,
  session = excluded.session, seq = excluded.seq
WHERE {_NEWER}
""",
    signed=True,
    counts=True,
)

# $1 cluster, $2 kind, $3 name, $4 after, $5 limit, $6 bytes. A row for each entry, and one with an
# empty number if there is none.
READ = Statement(
    """
SELECT j.last, j.trimmed, e.number, e.data FROM @journal j LEFT JOIN LATERAL (
  SELECT s.number, s.data FROM (
    SELECT f.number, f.data,
      sum(octet_length(f.data)) OVER (ORDER BY f.number) - octet_length(f.data) AS size
    FROM (SELECT number, data FROM @journal_entry
      WHERE cluster = $1 AND kind = $2 AND name = $3 AND number > greatest($4::bigint, j.trimmed)
        AND number <= j.last ORDER BY number LIMIT $5) AS f) AS s
  WHERE s.size < $6::bigint) AS e ON true
WHERE j.cluster = $1 AND j.kind = $2 AND j.name = $3 ORDER BY e.number
""",
    writes=False,
)

# $3 cluster, $4 kind, $5 name, $6 fence, $7 the last number to remove, $8 entries to remove at
# most. Returns how far it has trimmed, and the last number; no row if the head is not held.
TRIM = Statement(
    """
WITH held AS (
  UPDATE @journal j SET fence = $6, session = $1, seq = $2,
    trimmed = greatest(j.trimmed, least($7::bigint, j.last, j.trimmed + $8::bigint))
  WHERE j.cluster = $3 AND j.kind = $4 AND j.name = $5 AND (j.fence < $6
    OR (j.fence = $6 AND NOT (j.session = $1 AND j.seq > $2)))
  RETURNING j.trimmed, j.last),
gone AS (
  DELETE FROM @journal_entry e USING held
  WHERE e.cluster = $3 AND e.kind = $4 AND e.name = $5 AND e.number <= held.trimmed)
SELECT trimmed, last FROM held
""",
    signed=True,
)

# $3 cluster, $4 kind, $5 name, $6 fence. Removes a head without entries.
FORGET = Statement(
    """
DELETE FROM @journal j
WHERE j.cluster = $3 AND j.kind = $4 AND j.name = $5 AND j.fence = $6 AND j.trimmed = j.last
  AND NOT (j.session = $1 AND j.seq > $2)
""",
    signed=True,
    counts=True,
)

# $1 cluster, $2 kind, $3 the name to begin after, $4 limit
NAMES = Statement(
    """
SELECT shard, name FROM @journal WHERE cluster = $1 AND kind = $2 AND name > $3
ORDER BY name LIMIT $4
""",
    writes=False,
)
