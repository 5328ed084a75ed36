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
    """The base of the suites.

    Attributes:
        make_vec: makes the VecEnv under test; see `Make`. A subclass must define it, as a staticmethod.
        exempt: words in the command lines of processes that may outlive a test. A subclass may define it.
    """

    make_vec: Make
    exempt: ClassVar[Collection[str]] = leaks.EXEMPT

    @pytest.fixture(autouse=True)
    def no_leaks(self) -> Iterator[None]:
        """Fail a test that leaves a process or a shared-memory file behind."""
        with leaks.no_leaks(self.exempt):
            yield

    def goes_on(self, vec: VecEnv, **attributes: Any) -> None:
        """Check that all envs of four CountingEnvs answer calls, resets and steps, once these attributes are set."""
        for name, value in attributes.items():
            vec.set_attr(name, value)
        assert vec.get_attr("tag") == [0, 1, 2, 3]
        vec.reset()
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4

    @pytest.fixture
    def make(self, no_leaks: None) -> Iterator[Make]:
        """Make the VecEnv under test, and close it after the test.

        Args:
            no_leaks: a fixture: VecEnvs are closed before it looks for leaks.

        Yields:
            A function that makes a VecEnv: it calls `make_vec` with its own arguments.
        """
        with contextlib.ExitStack() as stack:

            def make(*args: Any, **kwargs: Any) -> VecEnv:
                vec = self.make_vec(*args, **kwargs)
                stack.callback(vec.close)
                return vec

            yield make
