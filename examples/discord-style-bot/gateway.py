"""Stands for the library of a chat service: it owns the connection and the main loop.

A line of standard input is a message, a line of standard output a post.
"""

import asyncio
import os
import sys


class Gateway:
    def __init__(self):
        self._posts = 0

    async def post(self, channel, text):
        """Posts a message, and returns its id."""
        self._posts += 1
        print(f"#{channel}: {text}", flush=True)
        return f"{os.getpid()}-{self._posts}"

    async def run(self, on_message):
        """Calls `on_message` with each message, until the connection ends."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
        while line := await reader.readline():
            await on_message(line.decode().rstrip("\n"))
