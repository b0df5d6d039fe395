"""Reminders: moments at which an entity is called, kept by the store.

| module | content |
|---|---|
| `rule` | when a reminder is due: once, at an interval, by a cron expression |
| `record` | the reminders of one entity, and the record after a due moment |
| `schedule` | which entities of a shard are woken, and when: a pure machine |

Source: docs/how-to/reminders.md; B.119, B.120.
"""
