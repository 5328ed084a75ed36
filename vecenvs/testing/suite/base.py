"""The base of all suites: it makes the VecEnv under test and checks for leaks afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, ClassVar

import pytest

from vecenvs.testing import leaks
from vecenvs.vec_env import VecEnv

Make = Callable[..., VecEnv]
"""Called as make(env_fns, **common), with the keyword arguments that all VecEnvs share (autoreset and so on)."""


class Conformance:
    """The base of the suites. A subclass makes the VecEnv under test by `make_vec`."""

    make_vec: Make
    exempt: ClassVar[Collection[str]] = leaks.EXEMPT
    """Words in the command lines of processes that may outlive a test."""

    @pytest.fixture(autouse=True)
    def no_leaks(self) -> Iterator[None]:
        """Fail a test that leaves a process or a shared-memory file."""
        with leaks.no_leaks(self.exempt):
            yield

    @pytest.fixture
    def make(self, no_leaks: None) -> Iterator[Make]:
        """Make the VecEnv under test, and close it after the test."""
        with contextlib.ExitStack() as stack:

            def make(*args: Any, **kwargs: Any) -> VecEnv:
                vec = self.make_vec(*args, **kwargs)
                stack.callback(vec.close)
                return vec

            yield make
