"""Resets of a batched env: with seeds and options of its envs, and by `on_error` of a new one in place of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vecenvs._native.forks import run
from vecenvs.batch.info_batches import Columns, InfoColumn, merge_disjoint, select_rows
from vecenvs.transport.reset_arguments import ResetArguments, SeedStream
from vecenvs.worker.env_errors import ENV_ERRORS, EnvErrors
from vecenvs.worker.hosts.batched_host import BatchedHost
from vecenvs.worker.hosts.block_writer import BlockWriter, Mask
from vecenvs.worker.hosts.next_resets import NextResets
from vecenvs.worker.rules import EpisodeSeeds, Rules

Failed = Callable[[Mask, BaseException], None]  # of a reset of these envs; raises if that is to be an error


class HostResets:
    """Resets one host, whose envs begin at slot `first`. `replace` is called with a new one that takes its place."""

    def __init__(
        self, host: BatchedHost, first: int, rules: Rules, errors: EnvErrors | None,
        writer: BlockWriter, replace: Callable[[BatchedHost], None],
    ) -> None:  # fmt: skip
        self._host = host
        self._first = first
        self._seeds = None if rules.root is None else EpisodeSeeds(rules.root, first)
        self._errors = errors
        self._writer = writer
        self._replace = replace
        self._held = NextResets(first)
        self.hold = self._held.hold  # seed and options for an env's next reset which is not the batched env's own

    def resume(self, env: int, seed: Any) -> None:
        """Take over the seed of the next episode of an env that another worker had."""
        if self._seeds is None:
            self.hold(env, "seed", seed)
        else:
            self._seeds.put(env, seed)

    def comes_next(self, env: int) -> tuple[dict[str, Any] | None, SeedStream | None]:
        """Return what is held for an env's next reset, and with seeds of episodes which one begins then."""
        return self._held.of(env), None if self._seeds is None else self._seeds.of(env, None)

    def put_next(self, env: int, held: dict[str, Any] | None, stream: tuple[int, int] | None) -> None:
        """Set what `comes_next` returns."""
        for name in ("seed", "options"):
            self.hold(env, name, (held or {}).get(name))
        if self._seeds is not None and stream is not None:
            self._seeds.put(env, SeedStream(*stream))

    def begin(self, mask: Mask, given: ResetArguments, failed: Failed) -> Columns:
        """Reset the envs of `mask`, write their observations, and return their infos."""
        infos: Columns = {}
        for some, seeds, options in self._held.arguments(mask, given, apart=self._host.takes_masks):
            part = None if some.all() else some
            streams = {}
            if self._seeds is not None:
                streams = {env: self._seeds.of(env, seeds[env]) for env in np.flatnonzero(some).tolist()}
                seeds = self._seeds_of(streams)
            obs, own = self._reset(some, seeds, options, failed, streams)
            self._writer.write(self._writer.parts(obs, part), part)
            self._held.forget(some)
            own = own if part is None else select_rows(own, part)
            if self._seeds is not None:
                begun = [self._seeds.begin(env, stream) for env, stream in streams.items()]
                rows = np.array([*streams])
                own.update((key, InfoColumn(rows, [each[key] for each in begun])) for key in begun[0])
            infos = merge_disjoint(infos, own)
        return infos

    def _seeds_of(self, streams: dict[int, SeedStream]) -> list[int | None]:
        found = map(streams.get, range(self._host.num_envs))
        return [None if stream is None else stream.seed(self._first + env) for env, stream in enumerate(found)]

    def _reset(
        self, some: Mask, seeds: Sequence[int | None], options: Any, failed: Failed, streams: dict[int, SeedStream]
    ) -> Any:
        """Reset these envs of the host. With `on_error` try again with a new one, whose other episodes are lost.

        From the third try on it is with other seeds, those of the next `streams` if there are some.
        """
        part, errors = None if some.all() else some, self._errors
        if errors is None:
            return run(self._host.reset, part, seeds, options)
        changes = False
        while True:
            try:
                if 0 in errors.broken:
                    errors.make_anew(hosts := [self._host], 0)
                    self._host = hosts[0]
                    self._replace(self._host)
                    if changes or all(seed is None for seed in seeds):
                        seeds = self._other_seeds(seeds, streams, errors)
                errors.seeded(0, seeds[int(some.argmax())])
                found = run(self._host.reset, part, seeds, options)
            except ENV_ERRORS as exc:
                failed(some, exc)
                changes = errors.pause(0) > 1
            else:
                errors.was_reset(0)
                return found

    def _other_seeds(
        self, seeds: Sequence[int | None], streams: dict[int, SeedStream], errors: EnvErrors
    ) -> Sequence[int | None]:
        """Return seeds for another try; these where none has ever been given."""
        if streams:
            streams.update((env, stream.after()) for env, stream in [*streams.items()])
            return self._seeds_of(streams)
        first = errors.other_seed(0)
        return seeds if first is None else range(first // 2, first // 2 + len(seeds))
