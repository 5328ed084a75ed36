"""64 envs of text whose steps ask a tool over HTTP, on two worker processes: rows go on as they come.

    python examples/tool_envs.py --num-envs 64 --total-timesteps 2000

The tool is a server of this program's own, which answers a sum after 0.05 to 0.5 seconds. An env asks it for the answer
to its question and compares that with the action. The "policy" reads each question and is right nine times out of ten.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import threading
import time
from functools import partial
from typing import Any

from gymnasium import spaces

from vecenvs import AsyncEnv, SubprocVecEnv

QUESTIONS = 5  # in an episode


class ToolEnv(AsyncEnv[str, str]):
    """A few sums to be solved; the tool tells whether each was."""

    def __init__(self, port: int) -> None:
        self.observation_space = spaces.Text(100)
        self.action_space = spaces.Text(20)
        self._port = port
        self._left = 0
        self._question = ""

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        await super().reset(seed=seed)
        self._left = QUESTIONS
        return self._ask(), {}

    async def step(self, action: str) -> Any:
        solution = await self._get(self._question)
        self._left -= 1
        reward = float(action == solution)
        return self._ask(), reward, self._left == 0, False, {}

    def _ask(self) -> str:
        first, second = self.np_random.integers(100, size=2)
        self._question = f"{first}+{second}"
        return self._question

    async def _get(self, question: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET /{question} HTTP/1.0\r\n\r\n".encode())
        _, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return str(json.loads(body)["solution"])


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be the tool for one request."""
    request = (await reader.readline()).decode().split()
    await asyncio.sleep(random.uniform(0.05, 0.5))
    if not request:  # the env was closed meanwhile
        writer.close()
        return
    first, _, second = request[1][1:].partition("+")
    body = json.dumps({"solution": int(first) + int(second)})
    writer.write(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await writer.drain()
    writer.close()


def serve() -> int:
    """Start the tool in a thread; return its port."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return int(server.sockets[0].getsockname()[1])


def policy(question: str) -> str:
    """Answer a question, right nine times out of ten."""
    first, _, second = question.partition("+")
    return str(int(first) + int(second) + (random.random() < 0.1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--total-timesteps", type=int, default=2000, help="rows in all")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    envs = [partial(ToolEnv, serve())] * options.num_envs
    solved = rows = 0
    started = time.monotonic()
    with SubprocVecEnv(
        envs,
        options.num_workers,
        start_method="forkserver",
        concurrency="asyncio",
        step_timeout=30.0,
        on_failure="restart",
    ) as vec:
        vec.send([policy(question) for question in vec.reset(seed=options.seed)])
        while rows < options.total_timesteps:
            batch = vec.recv()  # all rows that are there, at least one
            solved += int(batch.rewards.sum())
            rows += len(batch)
            vec.send([policy(question) for question in batch.obs], batch.indices)
            rate = rows / (time.monotonic() - started)
            print(f"\r{rows} rows, {rate:.0f} a second, {solved / rows:.0%} solved", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
