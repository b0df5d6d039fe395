"""The help and the templates of the command, and its modules, which it imports by name."""

from pathlib import Path
from pkgutil import walk_packages

import shardbus_cli

_folder = Path(shardbus_cli.__file__).parent
datas = [
    (str(_folder / "help.json"), "shardbus_cli"),
    (str(_folder / "template"), "shardbus_cli/template"),
]
hiddenimports = [
    each.name
    for each in walk_packages(shardbus_cli.__path__, "shardbus_cli.")
    if "-" not in each.name
]
