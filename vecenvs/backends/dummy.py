"""All envs in the caller's process, one after another: the reference that every other engine must equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vecenvs.arguments import parse_timeout
from vecenvs.backends.beside import BesideTransport
from vecenvs.backends.in_process import LocalTransport
from vecenvs.batch.batch_columns import Allocator, BatchColumns
from vecenvs.batch.infos import blank_info, copies
from vecenvs.errors import VecEnvError
from vecenvs.pool.batched_results import BatchedResults
from vecenvs.pool.pool_vec_env import EnvFn, PoolVecEnv
from vecenvs.transport import Transport
from vecenvs.vec_env import StepReturn

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vecenvs.pool.pool_base import CommonArguments


class DummyVecEnv(PoolVecEnv):
    """Steps its envs in the calling process, one host after another. For cheap envs, few envs, and debugging.

    Args:
        env_fns: functions that make one env each.
        **common: the arguments that every engine takes. Those from `step_timeout` to `start_timeout` have no effect
            here, where nothing is waited for, but for the first three with a `concurrency`.

            * `autoreset`: what follows the end of an episode: "same_step", "next_step", "async" or "disabled"; see
              `vecenvs.vec_env`.
            * `info_attrs`: names of env attributes that are read after each step, for `infos` and `info_array`.
            * `copy`: False lets `step` return views, valid until the next call.
            * `observation_mode`: "different", as in Gymnasium, accepts envs whose observation spaces differ in their
              bounds. The space of env 0 is used, or that of a pair (space of a batch, space of one env).
            * `episode_seeds`: whether every reset is seeded: see `vecenvs.vec_env`.
            * `on_error`: what follows when an env raises. "raise": an EnvError. "reset": its episode ends and the next
              one begins, as `vecenvs.vec_env` tells. "renew": the same, with a new env.
            * `max_errors`: how many errors of an env in a row, with no episode completed, until one is raised.
            * `on_episode`: called in this process, before `step` or `recv` returns, with the info of each row that ends
              an episode. If it raises, so does that call; the next `step_wait` or `recv` returns the rows.
            * `tasks`: called as `tasks(slot, number, info)` for the seed and the options of each episode: see
              `vecenvs.vec_env`.
            * `record`: a folder for the records of episodes, which `python -m vecenvs rerun` runs again: see
              docs/state.md. It needs `episode_seeds`.
            * `record_episodes`: "failed" records the episodes in which an env has raised or its worker has died, "all"
              every one that ends.
            * `step_timeout`: raise StepTimeout if no env of a worker finishes a step, a reset or a call for so many
              seconds. With `concurrency` it is the limit of each env's step, in this process, too, and calls have none;
              without, envs in this process never time out.
            * `reset_timeout`: the same of resets alone, for which `step_timeout` does not count then: those that the
              caller asks for, and async autoresets.
            * `on_failure`: "restart" replaces a worker that died, or exceeds a time limit. Its envs return a
              truncated row with `info["worker_restarted"]` and begin new episodes.
            * `max_restarts`: how many workers are replaced in all before a failure is raised.
            * `on_restart`: called with the slots of a new worker, a list, once it has made its envs and before their
              first reset. It may use `get_attr`, `set_attr`, `env_method` and `call` of these slots, and no more.
            * `log_dir`: a directory in which each worker appends what it and its envs print or log to
              `worker-<number>.log`; one for each VecEnv.
            * `start_timeout`: raise StartTimeout if a worker has not made its envs after so many seconds.
            * `concurrency`: how a worker runs envs that wait (for a browser, a service): "threads", one for each env,
              or "asyncio", where `reset`, `step` and `close` are coroutines (see `vecenvs.AsyncEnv`). All envs wait at
              the same time, rows come as they are done, and time limits are those of each env, here, too: see
              docs/waiting.md. None: a worker runs one env after another.
            * `recycle`: a `vecenvs.Recycle`: when a worker process makes way for a new one. Needs `episode_seeds`, and
              one env per worker, which is the default then.
            * `spares`: so many envs more per worker, which are reset in advance and take the places of envs whose
              episodes have ended: steps wait for no reset. Needs `episode_seeds`. See docs/simulators.md.
            * `start_limit`: a pair (at_once, per_second): so many workers at most make their envs at the same time, and
              an env is made not before so many envs per second allow. Holds for workers that replace others, too; None
              in a place is no limit.
            * `work_limit`: a pair (at_once, per_second), with `concurrency`: so many envs at most are in a step or
              reset at the same time, and so many steps and resets begin in a second, in all workers together; for
              services that allow no more. The others wait for their turn.

    Raises:
        EnvError: an env could not be made.
        SpaceMismatch: the envs have different spaces or render modes.
        TypeError: an argument has a wrong type, or there is none of its name.
        ValueError: an argument has a wrong value.
    """

    _has_workers = False
    _caller_steps = True
    _parts = (*PoolVecEnv._parts, "_local", "_locals", "_results", "_take_actions")  # noqa: SLF001  its base's

    def __init__(self, env_fns: Iterable[EnvFn], **common: Unpack[CommonArguments]) -> None:
        self._locals: list[LocalTransport | BesideTransport] = []  # one for each host
        self._made_here: set[int] = set()  # see `make_envs`
        super().__init__(env_fns, **common)
        self._local: Any = self._locals[0]  # the one that `_direct` steps
        self._take_actions = self._batch.actions.take
        self._blank = blank_info()
        # Of a single batched env, whose observations need not go through the columns.
        results, objects = self._step_results, self._batch.observations.layout.has_objects
        self._results = results if isinstance(results, BatchedResults) and not objects else None
        self._recorded: int | None = None  # number of a step that `step_wait` carries out directly
        # Whether rows without infos are all that a step leaves behind, and no subclass has halves of `step` of its own.
        halves = (type(self).step_async, type(self).step_wait) == (DummyVecEnv.step_async, DummyVecEnv.step_wait)
        alone = len(self._locals) == 1
        self._direct = alone and halves and not (self._asynchronous or self._info_attrs or self._step_results.keep_rows)
        self._direct = self._direct and self._rules.on_error == "raise" and not self._step_results.notes
        self._direct = self._direct and self._rules.concurrency is None

    def step(self, actions: Any) -> StepReturn:
        """Step every env once. A step in which no env fails or gives an info takes the direct way below.

        It is recorded like any other, so after an exception the usual way goes on with it.
        """
        if not (self._free and self._direct and self._take_actions(actions)):
            return super().step(actions)
        self._free = False
        return self._step_directly(self._commands.record_step())

    def step_async(self, actions: Any) -> None:
        if self._free and self._direct and self._take_actions(actions):
            self._free = False
            self._recorded = self._commands.record_step()
        else:
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> StepReturn:
        number, self._recorded = self._recorded, None
        if number is None or self.closed or not self._commands.is_unsent(number):
            return super().step_wait(timeout)
        if timeout is not None:
            self._recorded = number
            parse_timeout(timeout)
            self._recorded = None
        return self._step_directly(number)

    def _step_directly(self, number: int) -> StepReturn:
        """Carry out a step that is recorded, and has not been sent."""
        commands = self._commands
        if not self._local.try_step(number):
            rows = self._local.pending_obs() if self._results is not None else None
            if rows is None or self._results is None:
                return super().step_wait()
            body, parts = rows
            commands.step_answers.add(0, body, plain=False)
            result = self._results.take(None, copy=self.copy, parts=parts)
        elif self._local.has_flags():
            result = self._step_results.with_flags(copies(self._blank, self.num_envs), copy=self.copy)
        else:
            result = self._step_results.plain(self._blank, copy=self.copy)
        if self._recorder is not None:
            self._recorder.note(self._delivered, None, result[3])
        self._tally.steps += 1
        self._tally.sums = self._tally.new
        self._free = True
        commands.stepping = None  # nothing is called after this: a signal's handler may raise when a call ends
        commands.unsent = None
        return result

    def _envs_here(self) -> list[Any]:
        if self.closed:
            return []
        if self._rules.spares:
            raise VecEnvError("envs with spares: envs change their places, so leave spares out, or use `call`")
        self._check_free("envs", None, autoresets=False)
        self._waiting.finish_resets(self._commands.everyone)
        if self._recorder is not None:
            self._recorder.note_call(range(self.num_envs), _look_into, (), {})
        if len(self._locals) == 1:
            return self._locals[0].envs()
        return [env for local in self._locals for env in local.envs()]

    def _begin(self, num_workers: int | None) -> int:
        return 1

    def _launch(self, worker: int, shard: range) -> Transport:
        env_fns = self._hosts.functions_of(shard)
        kind = LocalTransport if self._rules.concurrency is None else BesideTransport
        self._locals.append(kind(env_fns, shard.start, self._rules_of(worker), None, self._made_here))
        return self._locals[-1]

    def _lay_out(self) -> BatchColumns:
        space, actions = self.observation_space, self.action_space
        return BatchColumns(space, actions, self.num_envs, Allocator(), self._info_attrs)


def _look_into(_: Any) -> None:
    """Name a call by which a program gets the envs themselves."""
