"""`APP`: a module, an attribute or a file, and an error of its own for each mistake."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardbus_cli.app_and_cluster import app_or_project
from shardbus_cli.app_loader import load_app
from shardbus_cli.exit_codes import ExitCode


@pytest.mark.parametrize("app", ["good_app:bus", "good_app", "good_app.py", "./good_app.py:bus"])
def test_an_app_is_a_module_an_attribute_or_a_file(apps, app):
    assert load_app(app).name == "shop"


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("god_app:bus", r"no module 'god_app'; .*did you mean good_app\?"),
        ("good_app:bos", r"'good_app' has no attribute 'bos'; did you mean good_app:bus\?"),
        ("good_app:port", r"good_app:port is of type int, not a ShardBus; .*good_app:bus"),
        ("good_app:", r"cannot load 'good_app:'; write module:attribute"),
        (":bus", r"cannot load ':bus'"),
        ("", r"cannot load ''"),
        ("good-app", r"'good-app': it is no module name"),
        ("missing/app.py", r"there is no such file"),
    ],
)
def test_each_wrong_app_has_its_own_error(shell, apps, app, said):
    assert shell("node", "start", app) == ExitCode.APP
    assert re.search(said, shell.err)
    assert shell.err.count("\n") == 1


def test_a_module_without_or_with_several_buses(shell, apps):
    (apps / "empty_app.py").write_text("x = 1\n")
    (apps / "two_apps.py").write_text(
        "from shardbus import ShardBus\na, b = ShardBus('a'), ShardBus('b')\n"
    )
    assert shell("check", "empty_app") == ExitCode.APP
    assert "has no ShardBus" in shell.err
    assert shell("check", "two_apps") == ExitCode.APP
    assert "two_apps:a" in shell.err


def test_the_users_own_traceback_is_shown_from_his_first_line(shell, apps):
    (apps / "broken_app.py").write_text("def f():\n    return 1 / 0\n\nf()\n")
    assert shell("node", "start", "broken_app:bus") == ExitCode.APP
    assert "ZeroDivisionError" in shell.err
    assert "importlib" not in shell.err
    assert "shardbus_cli" not in shell.err
    assert "line 2 of broken_app.py" in shell.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("@bus.entity(name='a', shardz=3)\nclass A(Entity): ...", 4),
        ("def late():\n    bus.on_shutdown('nope')\n\nlate()", 5),
        ("import json\njson.loads('{')", 5),
        ("x = (", 4),
    ],
)
def test_a_declaration_that_is_refused_is_named_by_the_users_line(shell, apps, text, line):
    head = "from shardbus import Entity, ShardBus\n\nbus = ShardBus('shop')\n"
    (apps / "wrong_app.py").write_text(f"{head}{text}\n")
    assert shell("check", "wrong_app") == ExitCode.APP
    assert f"(line {line} of wrong_app.py)" in shell.err.splitlines()[-1]


def test_a_module_that_misses_another_is_not_taken_for_a_missing_one(shell, apps):
    (apps / "needy_app.py").write_text("import no_such_module_anywhere\n")
    assert shell("node", "start", "needy_app:bus") == ExitCode.APP
    assert "it raised ModuleNotFoundError (line 1 of needy_app.py)" in shell.err


FACTORIES = """
from shardbus import ShardBus

def make(size=1):
    return ShardBus("made")

def needy(size):
    return ShardBus("made")

async def late():
    return ShardBus("made")

def wrong():
    return 3

def broken():
    raise ValueError("no")

class Maker:
    bus = ShardBus("inner")

    @staticmethod
    def make():
        return ShardBus("static")
"""


def test_an_app_may_be_a_factory(apps):
    (apps / "made_app.py").write_text(FACTORIES)
    assert load_app("made_app:make").name == "made"
    assert load_app("made_app:Maker.make").name == "static"
    assert load_app("made_app:Maker.bus").name == "inner"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("needy", "the factory made_app:needy needs arguments; a factory is a function without"),
        ("late", "the factory made_app:late is async"),
        ("wrong", "the factory made_app:wrong returned an object of type int"),
        ("broken", r"it raised ValueError \(line 17 of made_app.py\)"),
        ("Maker", "made_app:Maker is of type type, not a ShardBus"),
    ],
)
def test_a_factory_that_makes_no_bus_has_an_error_of_its_own(shell, apps, name, said):
    (apps / "made_app.py").write_text(FACTORIES)
    assert shell("check", f"made_app:{name}") == ExitCode.APP
    assert re.search(said, shell.err)


def test_the_project_names_the_app_also_from_a_folder_below(shell, apps, monkeypatch):
    (apps / "pyproject.toml").write_text('[tool.shardbus]\napp = "good_app:bus"\n')
    (apps / "sub").mkdir()
    for folder in (apps, apps / "sub"):
        monkeypatch.chdir(folder)
        assert load_app(app_or_project(None)).name == "shop"
    assert app_or_project("other:bus") == "other:bus"
    (apps / "pyproject.toml").write_text('[tool.shardbus]\napp = "good_app.py:bus"\n')
    named = app_or_project(None)
    assert named == f"{apps / 'good_app.py'}:bus"
    assert load_app(named).name == "shop"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.other]\n", r"names none; add `app = "),
        ("[tool.shardbus]\napp = 3\n", "names none"),
        ("tool = 3\n", "cannot be read"),
        ("[tool", "cannot be read"),
        (None, "there is no pyproject.toml here or above; name one"),
    ],
    ids=["none", "number", "no table", "no toml", "no file"],
)
def test_a_project_without_an_app_is_an_error_of_one_line(shell, apps, monkeypatch, text, said):
    if text is None:
        real = Path.is_file
        monkeypatch.setattr(Path, "is_file", lambda f: f.name != "pyproject.toml" and real(f))
    else:
        (apps / "pyproject.toml").write_text(text)
    for command in (["check"], ["node", "start"], ["dev"]):
        assert shell(*command) == ExitCode.APP
        assert said in shell.err
        assert shell.err.count("\n") == 1
