"""Load the `ShardBus` that `APP` names.

`APP` is `module:attribute` as for uvicorn, `module`, or a path to a `.py` file, with or without
`:attribute`. The attribute is a ShardBus, or a **factory**: a function without parameters that
returns one. `app_and_cluster` finds the application of a command that is given none.

There are three different errors: the module does not exist, it has no such attribute, or the
attribute is no ShardBus. If the user's module or factory raises, its traceback is printed from the
user's first line on.

Source: docs/reference/cli.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from shardbus_cli.exit_codes import CommandFailure, ExitCode
from shardbus_cli.project_file import split_app

if TYPE_CHECKING:
    from shardbus import ShardBus

FORM = "write module:attribute, a module, or a path to a .py file"


def load_app(app: str) -> ShardBus:
    """Import `app` and return its ShardBus. The current directory is importable, as with
    `python -m`.

    Raises:
        CommandFailure: it cannot be loaded; exit code 3.
    """
    where, _, attribute = split_app(app)
    if not where or (":" in app and not attribute):
        raise CommandFailure(f"cannot load {app!r}", FORM, code=ExitCode.APP)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    is_path = where.endswith(".py") or "/" in where
    module = _from_path(Path(where)) if is_path else _from_name(where)
    return _named(module, where, attribute) if attribute else _only(module, where)


def _from_name(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise CommandFailure(f"cannot load {name!r}: it is no module name", FORM, code=ExitCode.APP)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise CommandFailure(
                f"cannot load {name!r}: there is no module {missing.name!r}",
                f"run from its folder {_nearest_module(missing.name)}".rstrip(),
                code=ExitCode.APP,
            ) from None
        raise _broken(name, missing) from None
    except Exception as raised:
        raise _broken(name, raised) from None


def _nearest_module(name: str) -> str:
    """Return a hint: a Python file of the current directory with a similar name."""
    here = sorted(file.stem for file in Path.cwd().glob("*.py"))
    near = get_close_matches(name, here, n=1)
    return f"(did you mean {near[0]}?)" if near else "or install it"


def _from_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise CommandFailure(
            f"cannot load {str(path)!r}: there is no such file", FORM, code=ExitCode.APP
        )
    path = path.resolve()
    name = (
        path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "shardbus_app"
    )
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CommandFailure(
            f"cannot load {str(path)!r}: it is no Python file", FORM, code=ExitCode.APP
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as raised:
        raise _broken(str(path), raised) from None
    return module


def _broken(what: str, raised: Exception) -> CommandFailure:
    """Print the traceback of the user's module and return the failure. An error of shardbus needs
    only its line."""
    from shardbus.errors import ShardBusError

    frames = _users_frames(raised.__traceback__)
    place = _place(raised, frames)
    if isinstance(raised, ShardBusError):
        return CommandFailure(
            f"cannot load {what!r}{place}: {raised.message}", raised.hint, code=ExitCode.APP
        )
    traceback.print_exception(type(raised), raised, frames)
    return CommandFailure(
        f"cannot load {what!r}: it raised {type(raised).__name__}{place}",
        "fix the module; see the traceback above",
        code=ExitCode.APP,
    )


def _place(raised: Exception, frames: TracebackType | None) -> str:
    """Return the last line of the user's code in the traceback; the error of shardbus itself is
    raised in its own code."""
    if isinstance(raised, SyntaxError) and raised.filename and raised.lineno:
        return f" (line {raised.lineno} of {Path(raised.filename).name})"
    passed = traceback.extract_tb(frames) if frames else []
    kept = [frame for frame in passed if not _is_library(frame.filename)] or passed
    return f" (line {kept[-1].lineno} of {Path(kept[-1].filename).name})" if kept else ""


def _is_library(file: str) -> bool:
    """True if the file belongs to shardbus or to Python's standard library."""
    import shardbus

    if file.startswith("<"):
        return True
    path = Path(file)
    ours = (Path(shardbus.__file__).parent, Path(__file__).parent)
    if any(path.is_relative_to(folder) for folder in ours):
        return True
    return path.is_relative_to(sysconfig.get_path("stdlib")) and "site-packages" not in path.parts


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of the import system and of this file."""
    while tb is not None:
        file = tb.tb_frame.f_code.co_filename
        if file != __file__ and not file.startswith("<frozen") and "importlib" not in file:
            return tb
        tb = tb.tb_next
    return None


def _named(module: ModuleType, where: str, attribute: str) -> ShardBus:
    target: object = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            near = get_close_matches(part, _candidates(target), n=1)
            hint = f"did you mean {where}:{near[0]}?" if near else _offer(module, where)
            raise CommandFailure(
                f"module {where!r} has no attribute {attribute!r}", hint, code=ExitCode.APP
            )
        target = getattr(target, part)
    from shardbus import ShardBus

    if isinstance(target, ShardBus):
        return target
    if inspect.isroutine(target):
        return _made_by(target, f"{where}:{attribute}")
    raise CommandFailure(
        f"{where}:{attribute} is of type {type(target).__name__}, not a ShardBus",
        _offer(module, where),
        code=ExitCode.APP,
    )


def _made_by(factory: Callable[..., object], name: str) -> ShardBus:
    """Call a factory and return its ShardBus."""
    from shardbus import ShardBus

    hint = "a factory is a function without parameters that returns a ShardBus"
    try:
        inspect.signature(factory).bind()
    except (TypeError, ValueError):
        raise CommandFailure(
            f"the factory {name} needs arguments", hint, code=ExitCode.APP
        ) from None
    if inspect.iscoroutinefunction(factory):
        raise CommandFailure(f"the factory {name} is async", hint, code=ExitCode.APP)
    try:
        made = factory()
    except Exception as raised:
        raise _broken(name, raised) from None
    if not isinstance(made, ShardBus):
        kind = type(made).__name__
        raise CommandFailure(
            f"the factory {name} returned an object of type {kind}", hint, code=ExitCode.APP
        )
    return made


def _candidates(target: object) -> list[str]:
    return [name for name in dir(target) if not name.startswith("__")]


def _offer(module: ModuleType, where: str) -> str:
    names = _buses(module)
    return f"did you mean {where}:{names[0]}?" if names else 'write bus = ShardBus("name") in it'


def _buses(module: ModuleType) -> list[str]:
    from shardbus import ShardBus

    return [name for name, value in vars(module).items() if isinstance(value, ShardBus)]


def _only(module: ModuleType, where: str) -> ShardBus:
    from shardbus import ShardBus

    buses = {id(value): value for value in vars(module).values() if isinstance(value, ShardBus)}
    if len(buses) == 1:
        return next(iter(buses.values()))
    if not buses:
        raise CommandFailure(f"{where!r} has no ShardBus", _offer(module, where), code=ExitCode.APP)
    raise CommandFailure(
        f"{where!r} has several ShardBus objects",
        f"name one, as in {where}:{_buses(module)[0]}",
        code=ExitCode.APP,
    )
