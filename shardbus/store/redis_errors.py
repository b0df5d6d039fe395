"""The meaning of an error of a Redis server or of the client library for a call: whether to send it
again, whether the server may have run it, and the remedy of an operator.

| code | meaning | the call |
|---|---|---|
| `READONLY` | a replica, or a master that was demoted | is sent again over a new connection |
| `LOADING` `MASTERDOWN` `CLUSTERDOWN` `TRYAGAIN` `UNBLOCKED` `BUSY` | cannot now | the same |
| `max number of clients` | `maxclients` is reached | the same |
| `NOREPLICAS` | fewer replicas than `min-replicas-to-write` | the same |
| `OOM` | `maxmemory` is reached, and nothing may be evicted | fails at once |
| `MISCONF` | the last snapshot or the log could not be written | fails at once |
| `NOAUTH` `WRONGPASS` | the password, or the user, is not accepted | fails at once |
| `NOPERM` | the user may not run a command, or not use a key | fails at once |
| `unknown command` | the server has not the command, as by `rename-command` | fails at once |

A call that fails at once did nothing on the server: the server checks memory, disk and user before
the first write of a script. There is one exception: a user who may run a script and some of its
commands only, or a server without some. Such a script may stop half-way, so its failure is not
definite.

An error arrives as an exception of the client library, which hides the code, or as text, if it
comes out of a script or is unknown to the library.

Source: docs/guarantees.md.
"""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from shardbus.store.trouble import Trouble

NEEDS = "the user needs ~shardbus:* +@scripting +@hash +@sortedset +del +time +info +scan"
LACKS = "lacks a command of the store"
OWN_CERTIFICATE = (
    "name a certificate that the server trusts: ssl_certfile and ssl_keyfile of `store.url`"
)
RENAMED = "remove its rename-command, and restrict users by ACL SETUSER"

_REPLICA = Trouble(
    "is a replica and read only (READONLY)", "name the master, or its Sentinels", again=True
)
_FULL = Trouble("is full: its maxmemory is reached (OOM)", "raise maxmemory, or remove data")
_DISK = Trouble(
    "cannot write to its disk, and takes no writes (MISCONF)",
    "mend or free the server's disk; its log names the error",
)
_USER = Trouble(
    "refuses this user or its password (NOAUTH, WRONGPASS)",
    "give store.url the present user and password",
)
_CODES = {
    "READONLY": _REPLICA,
    "OOM": _FULL,
    "MISCONF": _DISK,
    "NOAUTH": _USER,
    "WRONGPASS": _USER,
    "NOREPLICAS": Trouble(
        "has too few replicas to take writes (NOREPLICAS)",
        "start its replicas, or lower min-replicas-to-write",
        again=True,
    ),
    "LOADING": Trouble("loads its data (LOADING)", "wait until it has loaded", again=True),
    "MASTERDOWN": Trouble(
        "is a replica without its master (MASTERDOWN)",
        "name the master, or its Sentinels",
        again=True,
    ),
    "CLUSTERDOWN": Trouble(
        "is a cluster with slots that no server has (CLUSTERDOWN)",
        "see `redis-cli --cluster check`",
        again=True,
    ),
    "TRYAGAIN": Trouble("moves these keys to another server (TRYAGAIN)", again=True),
    "max number of clients reached": Trouble(
        "has too many connections (max number of clients reached)", "raise maxclients", again=True
    ),
    "UNBLOCKED": Trouble("has become a replica (UNBLOCKED)", again=True),
    "BUSY": Trouble(
        "runs a script of another user for too long (BUSY)", "see SCRIPT KILL", again=True
    ),
}
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (redis_errors.ReadOnlyError, "READONLY"),
    (redis_errors.OutOfMemoryError, "OOM"),
    (redis_errors.AuthenticationError, "WRONGPASS"),
    (redis_errors.BusyLoadingError, "LOADING"),
    (redis_errors.MasterDownError, "MASTERDOWN"),
    (redis_errors.ClusterDownError, "CLUSTERDOWN"),
    (redis_errors.TryAgainError, "TRYAGAIN"),
)
_WORDS = re.compile(
    r"\b(READONLY|OOM|MISCONF|NOREPLICAS|LOADING|MASTERDOWN|CLUSTERDOWN|TRYAGAIN|UNBLOCKED|NOAUTH"
    r"|WRONGPASS|max number of clients reached)\b|^(BUSY)\b"
)
_IN_SCRIPT = re.compile(r"\buser executing the script\b|\bcan't run this command\b", re.IGNORECASE)
_UNKNOWN = re.compile(r"\bunknown (?:redis )?command\b", re.IGNORECASE)
_NOT_ALLOWED = re.compile(r"\bNOPERM\b|\bno permissions?\b", re.IGNORECASE)
_SCRIPT = re.compile(r",? script: [0-9a-f]{40}.*$", re.DOTALL)
_REFUSES = re.compile(r"\balert (?:certificate required|unknown ca|bad certificate)\b", re.I)
_CERTIFICATE = re.compile(r"certificate verify failed|hostname mismatch|\bSSL\b|\bTLS\b", re.I)


def trouble_of(error: Exception) -> Trouble:
    """Return the meaning of the error."""
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return _CODES[code]
    text = _SCRIPT.sub("", str(error)).rstrip(".")
    if isinstance(error, redis_errors.NoPermissionError) or _NOT_ALLOWED.search(text):
        half_way = _IN_SCRIPT.search(text) is not None
        return Trouble(f"refuses this user (NOPERM): {text}", NEEDS, definite=not half_way)
    if _IN_SCRIPT.search(text):
        return Trouble(f"refuses this user (NOPERM): {text}", NEEDS, definite=False)
    if _UNKNOWN.search(text):
        return Trouble(f"{LACKS}: {text}", RENAMED, definite=False)
    if match := _WORDS.search(text):
        return _CODES[match[1] or match[2]]
    lost = isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError)
    if lost and _REFUSES.search(text):
        return Trouble(f"does not trust this client: {text}", OWN_CERTIFICATE, again=True)
    if lost and _CERTIFICATE.search(text):
        hint = "check ssl_ca_certs, and the host name in the server's certificate"
        return Trouble(f"cannot be trusted: {text}", hint, again=True)
    if lost or isinstance(error, redis_errors.AskError | TimeoutError):
        what = f"does not respond: {text}" if text else "does not respond"
        return Trouble(what, "check the server and the network", again=True, definite=False)
    return Trouble(f"answers with an error: {text}", definite=False)
