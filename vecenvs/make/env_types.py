"""The type of an env, from its id. preprocessing.py has what each type does to an env."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

# The package of an id's entry point, and the env type. All other envs are of type `plain`.
_PACKAGES = {
    "gymnasium.envs.classic_control": "classic_control",
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.mujoco": "mujoco",
    "gymnasium.envs.toy_text": "toy_text",
    "gymnasium_robotics": "robotics",
    "ale_py": "atari",
}
PLAIN = "plain"
ENV_TYPES = tuple(sorted({*_PACKAGES.values(), PLAIN, "retro"}))


def find_spec(env_id: str) -> EnvSpec:
    """Return the spec of an env id, of the highest version if it names none.

    Atari ids are found without `import ale_py`. `package.module:id` imports that module first.
    gymnasium.error.Error if the id is unknown or malformed; ImportError if the module cannot be imported, or the id is
    Atari's and ale-py is missing.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module.partition(".")[0]:
                raise
            told = f"env_id {env_id!r}: {error}. Install it, or start in the directory where it is"
            raise ModuleNotFoundError(told, name=error.name) from error
    with contextlib.suppress(gym.error.UnregisteredEnv):
        return _registered(name)
    try:
        importlib.import_module("ale_py")  # which registers Atari's ids
    except ImportError as error:
        if name.startswith("ALE/") or "NoFrameskip-" in name:
            raise ImportError(f"env_id {env_id!r} needs ale-py: pip install ale-py opencv-python-headless") from error
    try:
        return _registered(name)
    except gym.error.UnregisteredEnv as error:
        raise type(error)(_unknown(name)) from None


def find_source(name: str) -> EnvSpec | Callable[..., Any]:
    """Return the spec of an env id, or else the class or function that `package.module:name` names.

    The module's own class comes before an id without its version. ValueError if the module has something else of this
    name; the errors of `find_spec`.
    """
    module, colon, attribute = name.partition(":")
    try:
        spec = find_spec(name)
        if not colon or spec.id == attribute or not callable(getattr(importlib.import_module(module), attribute, None)):
            return spec
    except gym.error.Error as error:
        if not colon:
            raise
        if not hasattr(importlib.import_module(module), attribute.partition(".")[0]):
            raise type(error)(f"{module} has no {attribute!r}, and registers no env of this id") from None
    return find_function(name)


def find_function(name: str) -> Callable[..., Any]:
    """Return the class or function that `package.module:name` names. ImportError or ValueError if there is none."""
    module, _, attribute = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{name} is {found!r}, not a class or function")
    checked: Callable[..., Any] = found
    return checked


def get_env_type(env: str | EnvSpec) -> str:
    """Return the type of a registered env by the package of its entry point: `plain` if that is not in this module."""
    module = _module(find_spec(env) if isinstance(env, str) else env)
    for package, env_type in _PACKAGES.items():
        if f"{module}.".startswith(f"{package}."):
            return env_type
    return PLAIN


def check_env_type(env_type: Any, spec: EnvSpec | None) -> str:
    """Return the env type to use: `env_type`, or if it is None the type of `spec`, which is None for an env function.

    Any env may be called `plain`, to have no preprocessing. The names in the path of the entry point's module stand for
    the id's own type, too, because baselines' get_env_type returns these ("cartpole", a package of one's own).
    ValueError for an unknown type, or for another one than that of the id.
    """
    own = PLAIN if spec is None else get_env_type(spec)
    if env_type is None or (spec is not None and env_type in _module(spec).split(".")):
        return own
    if env_type not in ENV_TYPES:
        raise ValueError(f"unknown env_type {env_type!r}: the types are {', '.join(ENV_TYPES)} (None: by the env id)")
    if spec is not None and own not in (PLAIN, env_type) and env_type != PLAIN:
        raise ValueError(
            f"env_type is {env_type!r}, but {spec.id} is of type {own!r}: leave env_type out, or give {PLAIN!r} to "
            "have the env without preprocessing"
        )
    return str(env_type)


def _module(spec: EnvSpec) -> str:
    """Return the dotted name of the module of a spec's entry point."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def _unknown(name: str) -> str:
    """Return that there is no env of this name, and which ones are close to it, also in other namespaces."""
    ids = {env_id.rpartition("/")[2].lower(): env_id for env_id in sorted(gym.registry, key=len, reverse=True)}
    close = [repr(ids[found]) for found in get_close_matches(name.lower(), ids, n=3, cutoff=0.8)]
    hint = f"did you mean {' or '.join(close)}?" if close else "no id that is known here is like it."
    return (
        f"unknown env id {name!r}: {hint} Ids of a package are known once it was imported: write 'package:{name}', or "
        "give a function that makes the env"
    )


def _registered(name: str) -> EnvSpec:
    namespace, base, version = parse_env_id(name)
    if version is None and name not in gym.registry:
        version = find_highest_version(namespace, base)
    return gym.spec(get_env_id(namespace, base, version))
