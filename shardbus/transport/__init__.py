"""Sessions between processes: in order, without loss or duplicates while both live. Start with
`session`, `window` and `inbox`; `endpoint` has the connections, `zmq/` every line of ZeroMQ.
"""
