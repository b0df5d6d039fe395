"""Flags of `node start`: their help names the setting's default and variable."""

from __future__ import annotations

import re

from shardbus.config.loading import load, options, variable_of
from shardbus_cli import node_flags
from shardbus_cli.exit_codes import ExitCode


def test_flags_say_the_settings_they_stand_for(shell):
    assert shell("node", "start", "--help") == ExitCode.OK
    text = " ".join(shell.out.split())
    declared = dict(options())
    stated = {}
    for flag, key in node_flags.FLAGS.items():
        assert key in declared
        variable = variable_of(key)
        stands = rf"{flag} [A-Z:]+(?:\[:PORT\])? [^\[]*\[default: ([^;]*); env: {variable}\]"
        match = re.search(stands, text)
        assert match, flag
        stated[flag] = match[1]
    defaults = load()
    assert stated["--host"] == defaults.node.host
    assert stated["--port"] == str(defaults.node.port)
    assert stated["--http-port"] == str(defaults.http.port)
    assert stated["--log-level"] == defaults.log.level
    assert stated["--log-format"] == defaults.log.format
