"""Projections: read sides that handle the events of each entity of a type, in their order.

| module | content |
|---|---|
| `parts` | which entities have events that a projection has not handled: a pure machine |

Source: docs/how-to/event-sourcing.md; S2.74.
"""
