"""A chat over WebSockets: rooms are entities, and a browser connects to any process of the cluster.

    pip install uvicorn[standard]
    uvicorn examples.chat:app --port 8000
    SHARDBUS_NODE__PORT=7365 SHARDBUS_HTTP__PORT=8568 SHARDBUS_NODE__SEEDS=127.0.0.1:7355 \
        uvicorn examples.chat:app --port 8001

Each process is a node and a web server. A browser opens ws://127.0.0.1:8000/rooms/tea, sends
{"from": "anna", "text": "hello"}, and gets every line of the room. The room's lines are in memory;
an entity with `state` would keep them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from shardbus import Entity, RequestError, ShardBus, handler
from shardbus.integrations.starlette import lifespan

LINES_MAX = 1000
NEWS_S = 0.2
"""Seconds between two looks of a socket at its room."""

bus = ShardBus("chat")


@bus.entity("room")
class Room(Entity):
    """The last lines of a room, numbered from 1."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    @handler
    def say(self, who: str, text: str) -> int:
        """Add a line; return its number."""
        self.lines = [*self.lines[1 - LINES_MAX :], f"{who}: {text}"]
        self.count += 1
        return self.count

    @handler
    def since(self, number: int) -> tuple[int, list[str]]:
        """Return the number of the last line, and the lines after that number."""
        if number > self.count:
            return self.count, self.lines  # the room has started anew
        fresh = min(self.count - number, len(self.lines))
        return self.count, self.lines[len(self.lines) - fresh :]


async def listen(socket: WebSocket, room: Room) -> None:
    """Send every line of the room to the browser."""
    number = 0
    while True:
        with suppress(RequestError):  # the room moves, or its node is gone: ask again
            number, lines = await room.since(number)
            for line in lines:
                await socket.send_text(line)
        await asyncio.sleep(NEWS_S)


async def chat(socket: WebSocket) -> None:
    """Serve one browser."""
    room = bus.ref(Room, socket.path_params["room"])
    await socket.accept()
    listening = asyncio.create_task(listen(socket, room))
    try:
        while True:
            said = await socket.receive_json()
            try:
                await room.say(said["from"], said["text"])
            except (KeyError, TypeError, RequestError) as wrong:
                await socket.send_text(f"not said: {wrong}")
    except WebSocketDisconnect:
        pass
    finally:
        listening.cancel()
        await asyncio.wait([listening])


app = Starlette(routes=[WebSocketRoute("/rooms/{room}", chat)], lifespan=lifespan(bus.run))
