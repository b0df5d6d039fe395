"""The coordinator of one entity type. Start with `coordinator`, which lists the parts, and with
`handoff`, which has the phases of one move.
"""
