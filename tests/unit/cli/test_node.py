"""`node start`, `node leave` and `node down`: refusals, with reasons."""

from __future__ import annotations

import json
import os

import pytest

from shardbus_cli.exit_codes import ExitCode
from tests.unit.cli.cli_kit import ME


def test_leave_and_down_need_the_token(shell, url, node, monkeypatch):
    assert shell("node", "leave") == ExitCode.REFUSED
    assert "token" in shell.err
    monkeypatch.setenv("SHARDBUS_NODE_TOKEN", "sesame")
    assert shell("node", "leave") == ExitCode.OK
    assert shell("node", "leave", ME) == ExitCode.OK
    assert shell("node", "down", ME, "--json") == ExitCode.OK
    assert json.loads(shell.out) == {"down": ME}
    assert shell("node", "down", ME, "--force") == ExitCode.OK
    downs = [("down", ME, False), ("down", ME, True)]
    assert node.acts == [("leave", "self"), ("leave", ME), *downs]
    assert shell("node", "down", "127.0.0.1:1") == ExitCode.FAILED


def test_a_store_that_there_cannot_be_is_wrong_usage(shell, apps):
    assert shell("node", "start", "good_app", "--store", "nope://x") == ExitCode.USAGE
    assert "no store is known by the scheme of 'nope://x'" in shell.err


def test_a_bad_setting_stops_node_start_before_the_app_is_loaded(shell, apps):
    assert shell("node", "start", "good_app", "--port", "x") == ExitCode.USAGE
    assert "node.port = 'x' (--port): not a whole number" in shell.err
    assert shell("node", "start", "good_app", "--host", "10.0.0.1") == ExitCode.USAGE
    assert "security.insecure" in shell.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "node.prot=1"), "did you mean node.port?"),
        (("--port", "0"), "node.port = '0' (--port): "),
        (("--host", "0.0.0.0", "--advertise", "127.0.0.1"), "security.insecure"),
    ],
)
def test_node_start_refuses_options_in_one_line(shell, apps, options, said):
    assert shell("node", "start", "good_app", *options) == ExitCode.USAGE
    assert said in shell.err
    assert (shell.err.count("\n"), shell.out) == (1, "")


def test_a_descriptor_for_the_ready_line_must_be_open_to_write(shell, apps):
    reading, writing = os.pipe()
    start = ("node", "start", "good_app", "--set", "node.prot=1", "--ready-fd")
    assert shell(*start, str(reading)) == ExitCode.USAGE
    assert f"--ready-fd {reading}: the descriptor is open to read only" in shell.err
    assert shell(*start, str(writing)) == ExitCode.USAGE
    assert "did you mean node.port?" in shell.err
    os.close(reading)
    os.close(writing)
    for closed in ("9999", "-1", "99999999999999999999"):
        assert shell(*start, closed) == ExitCode.USAGE
        assert f"--ready-fd {closed}: this process has no such descriptor" in shell.err
