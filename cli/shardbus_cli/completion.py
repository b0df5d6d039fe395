"""Completion of command lines by the shell, without a parser of command lines.

    shardbus --install-completion [SHELL]    writes the script below and lets the shell read it
    shardbus --show-completion [SHELL]       prints the script
    shardbus --complete SHELL WORD...        called by the script at each Tab: one candidate a line

Commands, options and their values come from the pages of `help.json`, which takes a tenth of the
time of the parser. The names of types and nodes come from the node that `--node` or
SHARDBUS_NODE_URL names, if it answers within `ASK_S`. A script leaves files to its shell, at the
line `:files`.

Source: docs/how-to/develop.md.
"""

from __future__ import annotations

import os
import re
import sys

from shardbus_cli.command_table import HEAD, SECTIONS, pages

ASK_S = 0.4
FILES = ":files"
SHELLS = ("bash", "zsh", "fish")
OPTION = re.compile(
    r"  (?:(?P<short>-\w), )?(?P<long>--[\w-]+)(?: / (?P<other>--[\w-]+)| (?P<value>\S.*?))?"
    r"(?:  +(?P<help>.*))?$"
)
COMMAND = re.compile(r"  (?P<name>[\w-]+)  +(?P<help>.*)")
ARGUMENT = re.compile(r"  (?P<name>\S.*?) <(?:str|path|list\[\w+\])>")
BREAKS = "=:"
"""Where bash begins a new word, so that a candidate must lack the text before it."""
FILE_VALUES = ("FILE", "APP", "DIR")
WORDS = {
    "LEVEL": ("debug", "info", "warning", "error"),
    "FORMAT": ("auto", "pretty", "json"),
    "SHELL": SHELLS,
}
Candidate = tuple[str, str]
"""A word, and its meaning."""

BASH = """\
_shardbus() {
    local IFS=$'\\n' found
    found=($(shardbus --complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    if [ "${found[0]}" = :files ]; then
        compopt -o default
        COMPREPLY=()
    else
        COMPREPLY=("${found[@]}")
    fi
}
complete -F _shardbus shardbus
"""
ZSH = """\
if ! (( $+functions[compdef] )); then
    autoload -Uz compinit && compinit
fi
_shardbus() {
    local -a found described
    local line
    found=("${(@f)$(shardbus --complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ $found[1] == :files ]]; then
        _files
        return
    fi
    for line in $found; do
        [[ -n $line ]] && described+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    _describe shardbus described
}
compdef _shardbus shardbus
"""
FISH = """\
function __shardbus_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found (shardbus --complete fish $words[2..] "$word" 2>/dev/null)
    if test "$found[1]" = :files
        __fish_complete_path "$word"
    else
        printf '%s\\n' $found
    end
end
complete -c shardbus -f -a '(__shardbus_complete)'
"""
SCRIPTS: dict[str, str] = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def run(arguments: list[str]) -> int:
    """Carry out one of the three options. Returns the exit code."""
    if arguments[0] == "--complete":
        shell, words = arguments[1], arguments[2:]
        sys.stdout.write("".join(f"{line}\n" for line in lines_for(shell, words)))
        return 0
    shell = arguments[1] if len(arguments) > 1 else shell_of()
    if shell not in SHELLS or len(arguments) > 2:
        from shardbus_cli.output import error

        error(f"{arguments[0]}: no shell {shell!r}; name one of {', '.join(SHELLS)}")
        return 2
    if arguments[0] == "--show-completion":
        sys.stdout.write(SCRIPTS[shell])
        return 0
    return install(shell)


def shell_of() -> str:
    """Return the name of the shell that has started this command, else of the user's own."""
    try:
        with open(f"/proc/{os.getppid()}/comm", encoding="ascii") as file:
            parent = file.read().strip()
    except OSError:
        parent = ""
    return parent if parent in SHELLS else os.path.basename(os.environ.get("SHELL", ""))


def install(shell: str) -> int:
    """Write the script where the shell finds it, and let its start file read it, once."""
    from pathlib import Path

    from shardbus_cli.output import data, error

    try:
        home = Path.home()
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
        if shell == "fish":
            script, starts = config / "fish" / "completions" / "shardbus.fish", None
        else:
            script = config / "shardbus" / f"completion.{shell}"
            folder = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
            starts = folder / f".{shell}rc"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(SCRIPTS[shell], encoding="utf-8")
        data(str(script))
        line = f"[ -r '{script}' ] && . '{script}'"
        before = starts.read_text(encoding="utf-8") if starts and starts.exists() else ""
        if starts and line not in before.splitlines():
            with starts.open("a", encoding="utf-8") as file:
                file.write(f"{'' if before.endswith(chr(10)) or not before else chr(10)}{line}\n")
            data(str(starts))
    except (OSError, ValueError, RuntimeError) as failed:  # the last: no home directory
        error(f"{failed.__class__.__name__}: {failed}; --show-completion prints the script")
        return 1
    data(f"open a new {shell}, then press Tab after `shardbus `")
    return 0


def lines_for(shell: str, args: list[str]) -> list[str]:
    """Return the lines for a shell: of bash the one argument is the line up to the cursor, of the
    others each word up to it, without the command."""
    words = _words(args[0])[1:] if shell == "bash" else args
    *before, word = words or [""]
    choices = candidates(before, word)
    if choices is None:
        return [FILES]
    if shell != "bash":
        return [f"{name}\t{about}" for name, about in choices]
    kept = max(word.rfind(sign) for sign in BREAKS) + 1
    return [name[kept:] for name, _ in choices]


def _words(line: str) -> list[str]:
    """Return the words of a line; the last one is empty after a space."""
    import shlex

    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    return [*words, *([""] if line[-1:].isspace() else [])]


def candidates(before: list[str], word: str) -> list[Candidate] | None:
    """Return the completions of `word` after these words; None if it names a file."""
    texts, path, rest = pages(), "", list(before)
    page = HelpPage(HEAD)
    awaited, places = "", 0
    while rest:
        token = rest.pop(0)
        if token.startswith("-"):
            awaited = page.options.get(token, ("", ""))[0]
            if awaited and rest:
                rest.pop(0)
                awaited = ""
        elif not places and (below := f"{path} {token}".strip()) in texts:
            path, page = below, HelpPage(texts[below])
        else:
            places += 1
    node = _value_of(before, "--node")
    if awaited:
        return _values(awaited, word, node)
    if word.startswith("-"):
        name, sign, part = word.partition("=")
        if sign:
            values = _values(page.options.get(name, ("", ""))[0], part, node)
            return values and [(f"{name}={value}", about) for value, about in values]
        return _beginning(word, {name: about for name, (_, about) in page.options.items()})
    if not path and places:
        return []  # no such command
    if not path:
        return _beginning(
            word, {n: line for rows in SECTIONS.values() for n, (_, line) in rows.items()}
        )
    if page.commands:
        return _beginning(word, page.commands)
    return _values(page.argument(places), word, node)


class HelpPage:
    """The help of one command, read."""

    def __init__(self, text: str) -> None:
        self.options: dict[str, Candidate] = {}
        """The value that each option takes, empty for none, and its meaning."""
        self.commands: dict[str, str] = {}
        self.arguments: list[str] = []
        section = ""
        for line in text.splitlines():
            if line and not line.startswith(" "):
                section = line
            elif section == "Options:" and (option := OPTION.match(line)):
                about = (option["value"] or "", (option["help"] or "").partition(" [")[0])
                names = [option[group] for group in ("short", "long", "other")]
                self.options |= {name: about for name in names if name}
            elif section == "Commands:" and (command := COMMAND.match(line)):
                self.commands[command["name"]] = command["help"]
            elif section == "Arguments:" and (argument := ARGUMENT.match(line)):
                self.arguments.append(argument["name"])

    def argument(self, place: int) -> str:
        """Return the name of the argument at a place, empty if the command takes none there."""
        if place < len(self.arguments):
            return self.arguments[place]
        last = self.arguments[-1] if self.arguments else ""
        return last if last.endswith("...") else ""


def _values(kind: str, word: str, node: str) -> list[Candidate] | None:
    """Return the values of an option or argument that the help calls `kind`; None for files."""
    kind = kind.partition(" ")[0].strip("[]{}.").partition("|")[0]
    if kind in FILE_VALUES:
        return None
    if kind in WORDS:
        return _beginning(word, dict.fromkeys(WORDS[kind], ""))
    if kind == "TYPE":
        rows = _rows_of(node, "/v1/types", "types")
        return _beginning(word, {str(row.get("type")): "" for row in rows})
    if kind == "NODE":
        rows = _rows_of(node, "/v1/nodes", "nodes")
        return _beginning(word, {str(row.get("address")): str(row.get("status")) for row in rows})
    return []


def _beginning(word: str, names: dict[str, str]) -> list[Candidate]:
    return [(name, about) for name, about in names.items() if name.startswith(word)]


def _value_of(words: list[str], option: str) -> str:
    """Return the value that an option has on the line so far; empty if it has none."""
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


def _rows_of(node: str, path: str, key: str) -> list[dict[str, object]]:
    """Return rows of a page of the node; none if it does not answer at once."""
    from shardbus_cli.exit_codes import CommandFailure
    from shardbus_cli.health import read_plain

    try:
        rows = read_plain(node, path, ASK_S).get(key, ())
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, TypeError, CommandFailure):
        return []
