"""Random schedules on every backend. VECENVS_SCHEDULES=N sets the number of schedules per mode and configuration."""

from __future__ import annotations

import pytest
from conftest import Configuration

from vecenvs.testing.suite.schedules import ScheduleConformance


class TestSchedules(ScheduleConformance):
    """On one configuration of each kind."""

    matrix = "fast"

    @pytest.fixture(autouse=True)
    def _configure(self, configuration: Configuration) -> None:
        self.make_vec = configuration.make_vec
