"""A scene boundary -> the `location_scenario` row of the scene it plans."""

from __future__ import annotations

from collections.abc import Iterator

from data_builders.walk import Boundary, Step
from ewtrain.tasks import LOCATION_SCENARIO
from ewtrain.tasks.location_scenario import LocationScenarioInput, LocationScenarioTarget


def steps(moment: Boundary) -> Iterator[Step]:
    scene = moment.scene
    if scene is None:
        return

    def make() -> tuple[LocationScenarioInput, LocationScenarioTarget]:
        target = LocationScenarioTarget(location=scene.location, scenario=scene.scenario)
        return LOCATION_SCENARIO.observe(moment.state, scene.cast), target

    yield Step("location_scenario", moment.state.book.book_id, moment.index, make)
