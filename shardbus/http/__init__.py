"""HTTP of a node: `app` has the routes, `api` the Protocol they read a node through, `guard` and
`connections` keep strangers out, `server` runs it in the node's loop.
"""
