"""`EnvState`: where one env is in its episode, and what its next one begins with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from vecenvs.env_calls import layers
from vecenvs.errors import StateError
from vecenvs.state.adapters import qualified
from vecenvs.state.encoding import Decoder, Encoder, EncodingError


@dataclass(frozen=True)
class EnvState:
    """The state of one env, as `VecEnv.get_state` returns it. It can be pickled, and kept as long as one likes.

    Attributes:
        kind: what an env must be to take it: its id, the classes of its layers, its spaces and so on, by name.
        way: how the env is put into it: "state" or "replay".
        data: the state of the env and its wrappers, as plain data.
        episode: whether it has ended, its last observation and action, what the next reset was given; as plain data.
        stream: with `episode_seeds` the seed and the number of the next episode.
        info: the info of the last reset, as plain data.
        trusted: whether classes and functions in it are taken by their names.
        first_due: in mode "async", whether the first row of its episode had come and was not returned yet.
    """

    kind: dict[str, str]
    way: str
    data: Any = field(repr=False)
    episode: Any = field(repr=False)
    stream: tuple[int, int] | None
    info: Any = field(repr=False, default=None)
    trusted: bool = True
    first_due: bool = False

    def begun_with(self, info: dict[str, Any], slot: int, *, first_due: bool) -> EnvState:
        """Return the same state with what the caller knows: the info of the last reset, and whether its row is due."""
        own = {key: value for key, value in info.items() if key != "episode_start"}
        try:
            return replace(self, info=Encoder(None).encode(own), first_due=first_due)
        except EncodingError as exc:
            raise StateError(slot, f"env {slot}: the info of its last reset has {', '.join(own)}: {exc}") from exc

    def held(self) -> dict[str, Any]:
        """Return the seed and the options that the next reset was given, as far as it was."""
        held = Decoder(None, trusted=self.trusted).decode(self.episode)["held"]
        return {} if held is None else dict(held)

    def check(self, kind: dict[str, str]) -> None:
        """Raise EncodingError unless it is the state of an env of this kind."""
        wrong = [
            f"{name} is {kind.get(name)}, in the state it is {was}"
            for name, was in self.kind.items()
            if kind.get(name) != was
        ]
        if wrong:
            raise EncodingError(f"it is the state of another kind of env: {'; '.join(wrong)}")


def kind_of(env: Any, autoreset: str, seeded: bool) -> dict[str, str]:
    """Return what two envs must have in common for the state of one to be the other's."""
    spec = getattr(env, "spec", None)
    bare = layers(env)[-1]
    return {
        "id": str(getattr(spec, "id", None)),
        "class": " in ".join(qualified(type(layer)) for layer in reversed(layers(env))),
        "state_version": str(getattr(type(bare), "state_version", None)),
        "observation space": text_of(env.observation_space),
        "action space": text_of(env.action_space),
        "autoreset": autoreset,
        "episode_seeds": str(seeded),
    }


def text_of(space: Any) -> str:
    """Return a space as text, that of an equal one in any process."""
    return re.sub(r" object at 0x[0-9a-fA-F]+", "", str(space))


def captured(env: Any, action: Any) -> Any:
    """Return the state of an env and its wrappers as plain data. EncodingError says what prevents that."""
    try:
        encoder = Encoder(env, action)
        data = encoder.encode(env)
        owners = encoder.owners()
        return Encoder(env, action, owners).encode(env) if owners else data
    except EncodingError:
        raise
    except Exception as exc:  # of its own get_state, or of too deep a structure
        raise EncodingError(f"its state cannot be read: {type(exc).__name__}: {exc}") from exc


def restore(env: Any, data: Any, *, trusted: bool) -> None:
    """Put an env and its wrappers into a state. EncodingError if they do not fit."""
    try:
        Decoder(env, trusted=trusted).decode(data, env)
    except EncodingError:
        raise
    except Exception as exc:  # data from a file may be anything
        raise EncodingError(f"it cannot be put into this state: {type(exc).__name__}: {exc}") from exc
