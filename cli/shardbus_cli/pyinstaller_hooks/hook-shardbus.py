"""The files of the page `/ui`, which a node serves."""

from pathlib import Path

import shardbus.http

datas = [(str(Path(shardbus.http.__file__).parent / "ui"), "shardbus/http/ui")]
