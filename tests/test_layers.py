"""The architecture, as failing tests: floors, banned names, sizes, and no module that nobody uses.

    floor 0    errors ids bounds error_text guarded_log heavy_hitters histograms inflate config
               backoff log_events quantities sample_marks task_set tasks transitions, and
               store.protocol
    floor 1    membership sharding deliveries reminders projections replication
                                            pure machines
    floor 2    wire                         pure codecs
    floor 3    transport store              input and output
    floor 4    replica routing http
    floor 5    entities client
    floor 6    shells                       one shell per machine
    floor 7    node
    floor 8    admin
    floor 9    app cluster data declaration entity handlers placement and the package itself
    floor 10   simulation, which runs whole nodes
    floor 11   testing, the kit for users' tests on the simulator; the command line

An import points down or stays within its package. Siblings do not see each other, except where
`SIBLINGS` says so. Imports under `TYPE_CHECKING` and within functions count, too: a type is
knowledge.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shardbus_cli.command_table import COMMANDS
from tests import syntax
from tests.syntax import nodes_of

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "shardbus.errors": 0,
    "shardbus.error_text": 0,
    "shardbus.guarded_log": 0,
    "shardbus.ids": 0,
    "shardbus.bounds": 0,
    "shardbus.heavy_hitters": 0,
    "shardbus.histograms": 0,
    "shardbus.log_events": 0,
    "shardbus.inflate": 0,
    "shardbus.quantities": 0,
    "shardbus.config": 0,
    "shardbus.backoff": 0,
    "shardbus.sample_marks": 0,
    "shardbus.task_set": 0,
    "shardbus.tasks": 0,
    "shardbus.transitions": 0,
    "shardbus.version": 0,
    "shardbus.store.protocol": 0,
    "shardbus.membership": 1,
    "shardbus.sharding": 1,
    "shardbus.reminders": 1,
    "shardbus.projections": 1,
    "shardbus.deliveries": 1,
    "shardbus.replication": 1,
    "shardbus.wire": 2,
    "shardbus.transport": 3,
    "shardbus.store": 3,
    "shardbus.replica": 4,
    "shardbus.routing": 4,
    "shardbus.http": 4,
    "shardbus.entities": 5,
    "shardbus.client": 5,
    "shardbus.shells": 6,
    "shardbus.node": 7,
    "shardbus.admin": 8,
    "shardbus.entity": 9,
    "shardbus.event_sourced": 9,
    "shardbus.projection": 9,
    "shardbus.delivery": 9,
    "shardbus.declaration": 9,
    "shardbus.handlers": 9,
    "shardbus.placement": 9,
    "shardbus.cluster": 9,
    "shardbus.app": 9,
    "shardbus.embedding": 9,
    "shardbus.data": 9,
    "shardbus": 9,
    "shardbus.integrations": 10,
    "shardbus.simulation": 10,
    "shardbus.testing": 11,
    "shardbus_cli": 11,
}

SIBLINGS = {
    ("shardbus.app", "shardbus.cluster"),
    ("shardbus.app", "shardbus.declaration"),
    ("shardbus.app", "shardbus.embedding"),
    ("shardbus.declaration", "shardbus.entity"),
    ("shardbus.declaration", "shardbus.event_sourced"),
    ("shardbus.declaration", "shardbus.handlers"),
    ("shardbus.declaration", "shardbus.projection"),
    ("shardbus.delivery", "shardbus.entity"),
    ("shardbus.delivery", "shardbus.event_sourced"),
    ("shardbus.event_sourced", "shardbus.entity"),
    ("shardbus.handlers", "shardbus.entity"),
    ("shardbus.store", "shardbus.transport"),
    ("shardbus.app", "shardbus.placement"),
    ("shardbus", "shardbus.app"),
    ("shardbus", "shardbus.entity"),
    ("shardbus", "shardbus.event_sourced"),
    ("shardbus", "shardbus.projection"),
    ("shardbus.projection", "shardbus.entity"),
    ("shardbus.projection", "shardbus.event_sourced"),
}
"""Who may import whom on its own floor, above floor 0."""

ENTRY_POINTS = {
    "shardbus_cli.main",
    "shardbus_cli.dev.node_main",
    "shardbus_cli.template.app",
    "shardbus_cli.pyinstaller_hooks",
    "shardbus_cli.pyinstaller_hooks.hook-shardbus",
    "shardbus_cli.pyinstaller_hooks.hook-shardbus_cli",
    "shardbus.simulation.replication.run",
    "shardbus.simulation.replication.data_calls",
    "shardbus.data",
    "shardbus.testing.store_suite",
    "shardbus.testing.allocation_suite",
    "shardbus.integrations.starlette",
    "shardbus.delivery",
}
"""Modules that are started or imported from outside: the command, the process of a node of
`shardbus dev`, the application of a new project, the hooks that PyInstaller finds, the simulators
of replicas, the suites that tests of users subclass, and the modules that applications import by
their own names."""

SMALL_LINES = 40
"""A module below this size, with one importer, belongs into its importer."""
SMALL_PROGRAMS = {"shardbus_cli.bench_app"}
"""Applications that are named in command lines."""

LOADERS = {"shardbus_cli.commands"}
"""Modules that import the modules named in the table of commands."""

PURE = (
    "shardbus.membership",
    "shardbus.sharding",
    "shardbus.deliveries",
    "shardbus.reminders",
    "shardbus.projections",
    "shardbus.replication",
    "shardbus.wire",
)
PURE_BANNED = {"asyncio", "zmq", "redis", "time", "uuid", "logging", "threading", "socket", "os"}
BANNED_EVERYWHERE = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
BANNED_CALLS = {"eval", "exec", "__import__"}
BANNED_NAMES = {"CONNECT_ROUTING_ID", "CONNECT_RID", "ROUTER_HANDOVER"}

EXEMPT: dict[tuple[str, str], str] = {}
"""Module and banned name to the reason why it stands there."""

FUNCTION_LINES_MAX = 64
CLASS_LINES_MAX = 500
"""Lines of code: without blank lines, comments and docstrings."""
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

ATTRIBUTES_MAX = 25
SETTINGS = (
    "shardbus.config.settings",
    "shardbus.entities.entity_options",
    "shardbus.simulation.membership.options",
    "shardbus.simulation.nodes.options",
)
"""Each attribute there is a documented setting, or an option of a type or of a simulated run."""


def name_of(path: Path) -> str:
    base = ROOT / "cli" if path.is_relative_to(ROOT / "cli") else ROOT
    parts = list(path.relative_to(base).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for folder in ("shardbus", "cli/shardbus_cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
}


def tree_of(module: str) -> ast.Module:
    return syntax.tree_of(MODULES[module])


def package_of(module: str) -> str:
    """The longest name of the table that the module lies in."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in FLOORS and (name != "shardbus" or module == "shardbus"):
            return name
    raise AssertionError(f"{module} is on no floor: put it into the table")


@cache
def imports_of(module: str, tree: ast.Module) -> tuple[str, ...]:
    """Every module that is imported, wherever the import stands."""
    return tuple(_imports(module, tree))


def _imports(module: str, tree: ast.Module) -> Iterator[str]:
    if module in LOADERS:
        yield from (f"shardbus_cli.{place.partition(':')[0]}" for place in COMMANDS.values())
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def own(name: str) -> bool:
    return name.split(".")[0] in ("shardbus", "shardbus_cli")


def complaints_about_floors(module: str, tree: ast.Module) -> list[str]:
    here = package_of(module)
    complaints = []
    for imported in imports_of(module, tree):
        if not own(imported):
            continue
        there = package_of(imported)
        if there == here or (FLOORS[here] == 0 == FLOORS[there]) or (here, there) in SIBLINGS:
            continue
        if FLOORS[there] >= FLOORS[here]:
            complaints.append(
                f"{module} (floor {FLOORS[here]}) imports {imported} ({FLOORS[there]})"
            )
    return complaints


def complaints_about_purity(module: str, tree: ast.Module) -> list[str]:
    complaints = [
        f"{module} imports {imported}"
        for imported in imports_of(module, tree)
        if imported.split(".")[0] in PURE_BANNED
    ]
    for node in nodes_of(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="random"), attr=name) if name != "Random":
                complaints.append(f"{module}:{node.lineno} random.{name}: pass a Random in")
            case ast.ImportFrom(module="random", names=names):
                if [alias.name for alias in names] != ["Random"]:
                    complaints.append(f"{module}:{node.lineno} imports from random")
            case ast.Call(func=ast.Name(id="hash")):
                complaints.append(f"{module}:{node.lineno} hash(): differs between processes")
    return complaints


def complaints_about_names(module: str, tree: ast.Module) -> list[str]:
    complaints = [
        f"{module} imports {imported}"
        for imported in imports_of(module, tree)
        if imported.split(".")[0] in BANNED_EVERYWHERE
    ]
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                complaints.append(f"{module}:{node.lineno} {name}()")
            case ast.Attribute(attr=name) if name in BANNED_NAMES:
                if (module, name) not in EXEMPT:
                    complaints.append(f"{module}:{node.lineno} {name}")
    return complaints


def complaints_about_size(module: str, tree: ast.Module) -> list[str]:
    complaints = []
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                complaints.append(f"{module}:{node.lineno} {node.name} has {length} lines")
    return complaints


def code_lines(text: str) -> set[int]:
    """The numbers of the lines with code: no blank lines, comments or docstrings."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                    lines -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


def long_classes(module: str, text: str, tree: ast.Module) -> list[str]:
    """The classes of a module with more lines of code than a class may have."""
    spans = [
        (node.name, range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef)
    ]
    if all(len(span) <= CLASS_LINES_MAX for _, span in spans):
        return []
    lines = code_lines(text)
    counts = {name: len(lines.intersection(span)) for name, span in spans}
    return [f"{module}:{name} has {n} lines" for name, n in counts.items() if n > CLASS_LINES_MAX]


def attributes_of(classes: dict[str, ast.ClassDef], name: str) -> set[str]:
    """The attributes that a class and the bases of it assign or declare. `classes`: by name."""
    names = set()
    for statement in classes[name].body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field)):
                names.add(field)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self_name = [argument.arg for argument in statement.args.args[:1]]
                names |= {
                    node.attr
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in self_name
                }
    for base in classes[name].bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        inherits = plain.attr if isinstance(plain, ast.Attribute) else getattr(plain, "id", "")
        if inherits in classes and inherits != name:
            names |= attributes_of(classes, inherits)
    return names


def attribute_counts(trees: dict[str, ast.Module]) -> dict[str, int]:
    """The number of attributes of each class, by its full name. A public name stands once."""
    attributes = {
        module: {node.name: node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)}
        for module, tree in trees.items()
    }
    public = {name: node for classes in attributes.values() for name, node in classes.items()}
    return {
        f"{module}.{name}": len(attributes_of(public | classes, name))
        for module, classes in attributes.items()
        for name in classes
    }


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected groups of more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    all_circles: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in sorted(graph.get(node, ())):
            if after not in index:
                visit(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            start = stack.index(node)
            group, stack[start:] = sorted(stack[start:]), []
            if len(group) > 1:
                all_circles.append(group)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return all_circles


def class_names_twice(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Public class names that more than one module defines."""
    where: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module)
    return {name: modules for name, modules in where.items() if len(modules) > 1}


def test_imports_point_down():
    assert [c for m in MODULES for c in complaints_about_floors(m, tree_of(m))] == []


def test_pure_floors_have_no_clock_socket_thread_or_dice():
    pure = [m for m in MODULES if package_of(m) in PURE]
    assert pure
    assert [c for m in pure for c in complaints_about_purity(m, tree_of(m))] == []


def test_nothing_unpickles_evaluates_or_takes_a_routing_id_over():
    assert [c for m in MODULES for c in complaints_about_names(m, tree_of(m))] == []


def test_only_one_package_touches_zeromq():
    elsewhere = [
        module
        for module in MODULES
        if not module.startswith("shardbus.transport.zmq")
        and any(name.split(".")[0] == "zmq" for name in imports_of(module, tree_of(module)))
    ]
    assert elsewhere == []


def test_no_modules_import_each_other():
    graph = {m: {i for i in imports_of(m, tree_of(m)) if i in MODULES and i != m} for m in MODULES}
    assert circles(graph) == []


def test_a_class_name_stands_once():
    assert class_names_twice({m: tree_of(m) for m in MODULES}) == {}


def test_functions_fit_a_screen():
    assert [c for m in MODULES for c in complaints_about_size(m, tree_of(m))] == []


def test_no_class_is_long():
    long = [c for m in MODULES for c in long_classes(m, MODULES[m].read_text(), tree_of(m))]
    assert long == []


def test_objects_have_few_attributes():
    counts = attribute_counts({m: tree_of(m) for m in MODULES if m not in SETTINGS})
    assert {name: n for name, n in counts.items() if n > ATTRIBUTES_MAX} == {}


def test_somebody_imports_every_module():
    used = {imported for m in MODULES for imported in imports_of(m, tree_of(m)) if imported != m}
    alone = [
        module
        for module, path in MODULES.items()
        if module not in used and module not in ENTRY_POINTS and path.name != "__init__.py"
    ]
    assert alone == []


def test_a_small_module_has_more_than_one_importer():
    importers = Counter(i for m in MODULES for i in set(imports_of(m, tree_of(m))) if i != m)
    lone = [
        module
        for module, path in MODULES.items()
        if path.name != "__init__.py"
        and importers[module] == 1
        and len(path.read_text().splitlines()) < SMALL_LINES
    ]
    assert set(lone) - SMALL_PROGRAMS == set()


def test_the_tables_name_only_what_there_is():
    edges = {
        (package_of(m), package_of(i)) for m in MODULES for i in imports_of(m, tree_of(m)) if own(i)
    }
    assert SIBLINGS - edges == set()
    packages = {package_of(m) for m in MODULES}
    assert set(FLOORS) - packages == set()
    for module, name in EXEMPT:
        assert name in ast.dump(tree_of(module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("shardbus.ids", "from shardbus.wire import batch"),
        ("shardbus.membership.gossip", "import shardbus.sharding.table"),
        ("shardbus.http.app", "def f():\n    from shardbus.app import ShardBus"),
        ("shardbus.node.node", "from shardbus.app import ShardBus"),
        ("shardbus.store.sqlite", "from shardbus_cli import output"),
    ],
)
def test_an_import_that_points_up_is_found(module, source):
    assert complaints_about_floors(module, ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from asyncio import sleep",
        "import random\nrandom.random()",
        "from random import choice",
        "x = hash('a')",
        "def f():\n    import logging",
    ],
)
def test_what_is_not_pure_is_found(source):
    assert complaints_about_purity("shardbus.sharding.table", ast.parse(source))


@pytest.mark.parametrize(
    "source", ["import pickle", "eval('1')", "s.setsockopt(zmq.CONNECT_ROUTING_ID, b'x')"]
)
def test_what_is_banned_is_found(source):
    assert complaints_about_names("shardbus.node.node", ast.parse(source))


def test_what_is_allowed_is_not_complained_about():
    tree = ast.parse("from random import Random\nfrom shardbus.errors import ConfigError\n")
    assert complaints_about_floors("shardbus.node.node", tree) == []
    assert complaints_about_purity("shardbus.wire.batch", tree) == []
    assert complaints_about_names("shardbus.node.node", tree) == []


def test_a_package_needs_a_floor():
    with pytest.raises(AssertionError, match="is on no floor"):
        package_of("shardbus.utils.helpers")


def test_a_long_function_is_found():
    body = "\n".join(["def f():", *(["    pass"] * FUNCTION_LINES_MAX)])
    assert complaints_about_size("m", ast.parse(body))


@pytest.mark.parametrize(("more", "found"), [(0, []), (1, ["m:A has 501 lines"])])
def test_a_long_class_is_found(more: int, found: list[str]) -> None:
    body = ["class A:", '    """One\n\n    two."""', "    # no code", "", "    def f(self):"]
    body += ['        """Three."""', "        x = (1,", "            2)  # two lines of code"]
    text = "\n".join([*body, *["        pass"] * (CLASS_LINES_MAX - 4 + more)])
    assert long_classes("m", text, ast.parse(text)) == found


def test_attributes_are_counted_with_those_of_bases():
    base = "class A:\n    x: int\n    def f(self):\n        self.y, self._z = 1, 2"
    heir = "class B(m.A[int]):\n    async def g(self):\n        self.y = self.u = self.q.w = 3"
    counts = attribute_counts({"m": ast.parse(base), "n": ast.parse(heir)})
    assert counts == {"m.A": 3, "n.B": 4}


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_a_class_name_that_stands_twice_is_found():
    trees = {
        "m": ast.parse("class A: ...\nclass _B: ..."),
        "n": ast.parse("class A: ...\nclass _B: ..."),
    }
    assert class_names_twice(trees) == {"A": ["m", "n"]}


ERRORS_OF_ENTITIES = {"e", "error", "failure"}
"""Names under which modules of entities have exceptions that an application may have raised."""


@pytest.mark.parametrize(
    "module", [m for m in MODULES if m.startswith(("shardbus.entities.", "shardbus.tasks."))]
)
def test_classes_of_exceptions_are_compared_by_type(module: str) -> None:
    """`isinstance` reads `__class__`, which may lie or raise: `error_text.is_a` does not."""
    calls = [node for node in nodes_of(tree_of(module)) if isinstance(node, ast.Call)]
    places = [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id == "isinstance"
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id in ERRORS_OF_ENTITIES
    ]
    assert places == [], f"{module}: write is_a(error, ...)"


def test_only_tasks_uses_private_names_of_asyncio() -> None:
    """Each such use has a contract test there, on every supported Python."""
    uses = []
    for module, path in MODULES.items():
        if path.parent.name == "tasks" or not module.startswith("shardbus."):
            continue
        for node in nodes_of(tree_of(module)):
            match node:
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] == "asyncio":
                    names = [alias.name for alias in node.names]
                case ast.Attribute(value=ast.Name(id="asyncio")):
                    names = [node.attr]
                case ast.Constant(value="_fut_waiter" | "_asyncio_future_blocking"):
                    names = [node.value]
                case _:
                    names = []
            uses += [
                f"{path}: {name}"
                for name in names
                if name.startswith("_") and not name.endswith("__")
            ]
    assert not uses


def test_no_code_asks_a_handle_for_its_time() -> None:
    """A handle of uvloop for a time that has come is one of `call_soon`, without `when`."""
    asks = [
        f"{module}:{call.lineno}"
        for module in MODULES
        if package_of(module) != "shardbus.simulation"  # its loop makes asyncio's own handles
        for call in nodes_of(tree_of(module))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "when"
        and not call.args
    ]
    assert asks == []
