"""URLs of stores as text: their family, their options, the default, and the form without secrets.

Nothing here opens a store or imports a client library; `opening` does.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote

from shardbus.errors import ConfigError

REDIS_SCHEMES = (
    "redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip

_USER_INFO = re.compile(r"(?<=://)([^/@]*:)[^/]*(?=@)")
_SECRET_OPTION = re.compile(r"([?&][^=&]*(?:password|secret|token)[^=&]*=)[^&]*", re.IGNORECASE)
_NAME_MAX = 200


def family(url: str) -> str:
    """Return the kind of store that `url` names: `sqlite`, `memory`, `redis`, or its scheme."""
    scheme, mark, _ = url.partition("://")
    if not mark:
        return "sqlite"
    return "redis" if scheme in REDIS_SCHEMES else scheme


def default_url(cluster: str) -> str:
    """Return the URL for a cluster without `store.url`: a file in the user's state directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    name = quote(cluster, safe=" ")
    if len(name) > _NAME_MAX:
        name = f"{name[:100]}-{hashlib.sha256(cluster.encode()).hexdigest()}"
    return f"sqlite:///{home / 'shardbus' / name}.db"


def mask_url(url: str) -> str:
    """Return the URL without its passwords and tokens, for logs and errors."""
    return _SECRET_OPTION.sub(r"\1***", _USER_INFO.sub(r"\1***", url))


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
            raise ConfigError(
                f"store.url: the option {name!r} of {mask_url(url)!r} {problem}",
                hint=f"known are {', '.join(allowed)}",
            )
        options[name] = value
    return base, options


def check_durability(value: str, allowed: tuple[str, ...]) -> str:
    """Return `value`, the durability that a URL asks for.

    Raises:
        ConfigError: it is not in `allowed`.
    """
    if value not in allowed:
        raise ConfigError(f"store.url: durability is one of {', '.join(allowed)}, not {value!r}")
    return value
