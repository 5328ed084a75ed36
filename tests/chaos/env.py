"""An env with predictable rows, whose actions cause the failures of real envs."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from vecenvs.testing.envs.sized import LARGE, LIMITS, NEAR, filled

# An action is kind + KINDS * nonce; the nonce tells actions of one kind apart.
(STEP, END, TRUNCATE, RAISE, SLOW, HANG, EXIT, KILL, SEGFAULT, BAD_INFO, END_SLOW, END_RAISE, END_DIE, END_BAD) = range(
    14
)
KINDS = 16
NONCES = 64
DEADLY = frozenset({EXIT, KILL, SEGFAULT})
FAULTS = {END_SLOW: "slow", END_RAISE: "raise", END_DIE: "die", END_BAD: "bad"}  # of the reset after it
ENDING = frozenset({END, *FAULTS})
TOLD = "was told to fail"
HANG_SECONDS, GO_ON_SECONDS = 2.5, 4.5  # the latter in spite of a cancellation
MISSING = -1  # in place of a seed or an option that was not given

FIELDS = ("slot", "pid", "life", "episode", "t", "hash", "seed", "option")
FORMS = ("none", "numbers", "mixed", "large")
# Numbers that follow the fields in an observation: a few, as far as around every limit between a caller and an env.
PADS = (
    0,
    0,
    0,
    0,
    0,
    1,
    *(limit // 8 - len(FIELDS) + more for limit in LIMITS for more in (-1, 0, 1)),
    *(b // 8 for b in LARGE),
)


class Unloadable:
    """Pickles, but cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, (os.getpid(),)

    def __deepcopy__(self, memo: Any) -> Unloadable:
        return self


def _refuse(pid: int) -> None:
    raise LookupError("this cannot be unpickled")


def mix(number: int, more: int) -> int:
    """Return a hash of a hash and a number."""
    return (number * 1_000_003 + more + 1) % 2_147_483_647


def first_hash(slot: int, episode: int, seed: int, option: int) -> int:
    """Return the hash with which an episode begins."""
    return mix(mix(mix(mix(0, slot), episode), seed), option)


def reward_of(number: int) -> float:
    """Return the reward of a step that led to this hash: exact in float32."""
    return (number % 1024) / 8


def step_info(form: str, action: int, slot: int, t: int, number: int) -> dict[str, Any]:
    """Return the info of a step, without the part of a "bad" one that cannot be unpickled."""
    nonce = action // KINDS
    if form == "large":
        size = NEAR[number % len(NEAR)] if nonce % 20 else LARGE[nonce // 20 % 2]
        return {"blob": filled(size, slot, t, number).tobytes()} if nonce % 3 else {}
    if form == "none":
        return {}
    if form == "numbers":
        return {"t": t, "hash": number, "share": number / 7}
    return ({}, {"t": t, "hash": number}, {"text": f"{slot}/{number}"}, {"deep": {"a": [number], "b": (t,)}})[nonce % 4]


def padded(fields: Sequence[int], pad: int) -> NDArray[np.int64]:
    """Return an observation: the fields, and numbers that each depend on all fields."""
    more = filled(pad * 8, *fields).view(np.uint64) >> np.uint64(3)
    return np.concatenate([np.array(fields, np.int64), more.view(np.int64)])


class ChaosEnv(gymnasium.Env[NDArray[np.int64], Any]):
    """An env that counts steps and hashes everything that it was given.

    The observation has `FIELDS`: `life` is another one for each object of this class, `hash` depends on the actions
    of the episode, its seed and its option. `pad` numbers follow them. In the caller's process its actions neither end
    nor delay that process.
    """

    def __init__(self, slot: int, caller: int, form: str, pad: int = 0, start: float = 0.0) -> None:
        time.sleep(start)
        self.observation_space = Box(-1, 2**62, (len(FIELDS) + pad,), np.int64)
        self.action_space = Discrete(KINDS * NONCES)
        self.slot, self.form, self.pad = slot, form, pad
        self.remote = os.getpid() != caller
        self.life = time.monotonic_ns()
        self.episode = self.t = self.hash = self.bumps = self.bonus = 0
        self.seed = self.option = MISSING
        self.fault = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        fault, self.fault = self.fault, ""
        if fault == "raise":
            raise ValueError(f"env {self.slot} {TOLD} in its reset")
        if fault == "die" and self.remote:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "slow":
            time.sleep(0.2)
        self.episode += 1
        self.t = 0
        self.seed = MISSING if seed is None else seed
        self.option = MISSING if options is None else options.get("option", MISSING)  # batched envs may leave {}
        self.hash = first_hash(self.slot, self.episode, self.seed, self.option)
        info = {"slot": self.slot, "episode": self.episode}
        return self._row(), info | ({"bad": Unloadable()} if fault == "bad" else {})

    def step(self, action: Any) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        action = int(action)
        kind, nonce = action % KINDS, action // KINDS
        if kind == RAISE:
            raise ValueError(f"env {self.slot} {TOLD}")
        if kind in DEADLY and self.remote:
            if kind == EXIT:
                os._exit(nonce)
            os.kill(os.getpid(), signal.SIGKILL if kind == KILL else signal.SIGSEGV)
            time.sleep(60)
        if kind == HANG:
            self.hang()
        if kind == SLOW:
            time.sleep(nonce / 4000)
        self.t += 1
        self.hash = mix(mix(self.hash, action), self.bonus)
        self.fault = FAULTS.get(kind, self.fault)
        info = step_info(self.form, action, self.slot, self.t, self.hash)
        if kind == BAD_INFO:
            info["bad"] = Unloadable()
        return self._row(), reward_of(self.hash), kind in ENDING, kind == TRUNCATE, info

    def hang(self) -> None:
        time.sleep(HANG_SECONDS if self.remote else 0.02)

    def bump(self, payload: bytes) -> tuple[int, ...]:
        """Count a call of `env_method` and return the state."""
        self.bumps += 1
        return self.life, os.getpid(), self.episode, self.t, self.bumps, self.bonus, len(payload)

    def _row(self) -> NDArray[np.int64]:
        values = (self.slot, os.getpid(), self.life, self.episode, self.t, self.hash, self.seed, self.option)
        return padded(values, self.pad)


class NamelessEnv(ChaosEnv):
    """An env for any slot: the seeds of its rows tell which. With each reset it is new, but for what was set on it."""

    def reset(self, **kwargs: Any) -> tuple[NDArray[np.int64], dict[str, Any]]:
        self.life = time.monotonic_ns()
        self.episode = self.bumps = 0
        return super().reset(**kwargs)


class AwaitingEnv(ChaosEnv):
    """The same by coroutines. One that hangs awaits that; some go on in spite of their cancellation (`goes_on`)."""

    async def reset(self, **kwargs: Any) -> tuple[NDArray[np.int64], dict[str, Any]]:
        await asyncio.sleep(0)
        return super().reset(**kwargs)

    async def step(self, action: Any) -> tuple[NDArray[np.int64], float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(0)
        if int(action) % KINDS == HANG:
            seconds = GO_ON_SECONDS if goes_on(int(action)) else HANG_SECONDS
            for _ in range(int(seconds / 0.05)):  # so that time in which all processes are stopped does not count
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    if not goes_on(int(action)):
                        raise
        return super().step(action)

    async def close(self) -> None:
        await asyncio.sleep(0)

    def hang(self) -> None:
        pass


def goes_on(action: int) -> bool:
    """Tell whether a coroutine of this action that hangs goes on in spite of its cancellation."""
    return action // KINDS % 2 == 1
