"""URLs of stores as text: their family, their options, the default, and the form without secrets.

Nothing here opens a store or imports a client library; `opening` does.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import parse_qsl, quote

from shardbus.config.replicas import state_folder
from shardbus.errors import ConfigError

REDIS_SCHEMES = (
    "redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip

POSTGRES_SCHEMES = ("postgresql", "postgres")

MASK = "***"
SHOWN_OPTIONS = (
    "durability", "replicas", "master", "ssl_ca_certs", "ssl_certfile", "sentinel_username",
    "schema", "connections", "target_session_attrs", "sslmode", "sslrootcert", "sslcert",
)  # fmt: skip
"""Options of a URL whose values are shown."""
LOCAL_SCHEMES = ("sqlite", "memory")
"""Schemes whose URLs have no user, no password and no host."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,40}")
_USER = re.compile(r"[A-Za-z0-9._%-]*")
_OPTION = re.compile(r"[A-Za-z0-9_]+")
_HOST = r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.%A-Za-z]*\])(:[0-9]{1,5})?"
_PLACE = re.compile(rf"{_HOST}(,{_HOST})*(/[^@]*)?")
_FILE = re.compile(r"[\w./~ -]*")
_NAME_MAX = 200


def family(url: str) -> str:
    """Return the kind of store that `url` names: `sqlite`, `memory`, `redis`, `postgresql`, or its
    scheme."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        return "sqlite"
    if scheme in POSTGRES_SCHEMES:
        return "postgresql"
    return "redis" if scheme in REDIS_SCHEMES else scheme


def default_url(cluster: str) -> str:
    """Return the URL for a cluster without `store.url`: a file in the user's state directory."""
    name = quote(cluster, safe=" ")
    if len(name) > _NAME_MAX:
        name = f"{name[:100]}-{hashlib.sha256(cluster.encode()).hexdigest()}"
    return f"sqlite:///{state_folder() / name}.db"


def mask_url(url: str) -> str:
    """Return the URL without its passwords and tokens, for output, logs, pages and errors.

    The URL is read from the right: all before the last `@` is the user and the password, because a
    password may have any character. An option's value is shown if the option is known to hold no
    secret. A text without the form of a URL is not shown at all.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url if _FILE.fullmatch(url) else MASK
    if not _SCHEME.fullmatch(scheme):
        return MASK
    if scheme in LOCAL_SCHEMES:
        base, question, query = rest.partition("?")
        return f"{scheme}://{base}{question}{_mask_query(query)}"
    user_info, at, place = rest.rpartition("@")
    base, question, query = place.partition("?")
    if not _PLACE.fullmatch(base):
        return f"{scheme}://{MASK}"
    return f"{scheme}://{_mask_user(user_info)}{at}{base}{question}{_mask_query(query)}"


def _mask_user(user_info: str) -> str:
    user, colon, _ = user_info.partition(":")
    if not _USER.fullmatch(user):
        return MASK
    return f"{user}{colon}{MASK if colon else ''}"


def _mask_query(query: str) -> str:
    """Mask the values of options that may hold a secret, and all that is no option."""
    shown = []
    for option in query.split("&") if query else ():
        name, sign, value = option.partition("=")
        if not sign or not _OPTION.fullmatch(name):
            shown.append(MASK)
        else:
            shown.append(f"{name}={value if name in SHOWN_OPTIONS else MASK}")
    return "&".join(shown)


def split_options(url: str, allowed: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """Return the URL without its query, and the query's options.

    Raises:
        ConfigError: an option is not in `allowed`, or is given twice.
    """
    base, _, query = url.partition("?")
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in allowed or name in options:
            problem = "is given twice" if name in options else "is unknown"
            shown = repr(name) if _OPTION.fullmatch(name) and "@" not in query else "it"
            raise ConfigError(
                f"store.url: the option {shown} of {mask_url(url)!r} {problem}",
                hint=f"known are {', '.join(allowed)}",
            )
        options[name] = value
    return base, options


def check_durability(value: str, allowed: tuple[str, ...]) -> str:
    """Return `value`, the durability that a URL requests.

    Raises:
        ConfigError: it is not in `allowed`.
    """
    if value not in allowed:
        raise ConfigError(f"store.url: durability is one of {', '.join(allowed)}, not {value!r}")
    return value
