"""What must hold of a timeline beyond its shape: names, references, changes (contract section 1)."""

from __future__ import annotations

import difflib
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ewtrain.content import control_strings, unclosed_brackets
from ewtrain.errors import Fault
from ewtrain.files import RepeatedKeys, brief
from ewtrain.story import ENVIRONMENT, RESERVED_NAMES, TASK_NAMES, LocationState, entity_faults

# Key spellings of location states as EW Tables 26 and 27 print them, beside the canonical ones.
_PRINTED_KEYS = {
    "Detailed Description": "description",
    "Important Entities": "important_entities",
    "Sub Locations": "sub_locations",
}
_SHORT_DESCRIPTION_WORDS = (50, 80)  # EW Table 30


@dataclass
class Report:
    """What a check found: faults break the contract, notices are worth a look."""

    file: str
    faults: list[Fault] = field(default_factory=list)
    notices: list[Fault] = field(default_factory=list)


def check_data(data: dict[str, Any], file: str) -> Report:
    """Return what breaks the contract in a timeline's raw JSON; names in it become official ones in place.

    Wrong shapes are passed over (pydantic reports those), so that every fault of a file is found at once.
    """
    return _Checker(data, file).run()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _stripped(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) else None


class _Checker:
    """One walk over a timeline's raw JSON, in the order of the file."""

    def __init__(self, data: dict[str, Any], file: str) -> None:
        self.data = data
        self.report = Report(file)
        provided = data.get("provides", list(TASK_NAMES))
        self.provides = {p for p in _list(provided) if isinstance(p, str)}
        self.characters: dict[str, str] = {}
        self.locations: dict[str, str] = {}
        self.states: dict[
            str, LocationState | None
        ] = {}  # of each location, at the point the walk has reached

    def fault(self, path: str, wrong: str, right: str) -> None:
        self.report.faults.append(Fault(self.report.file, path, wrong, right))

    def notice(self, path: str, wrong: str, right: str) -> None:
        self.report.notices.append(Fault(self.report.file, path, wrong, right))

    def run(self) -> Report:
        self._texts(self.data, "")
        self._provides()
        self._book()
        self.characters = self._names("characters")
        self.locations = self._names("locations")
        self._states_at_start()
        if isinstance(self.data.get("previous_scene"), dict):
            self._previous_scene(self.data["previous_scene"])
        self._scenes()
        return self.report

    def _texts(self, value: Any, path: str) -> None:
        """What holds for every text and object: control strings and doubled keys."""
        if isinstance(value, str):
            if "<" in value or "===Segment" in value:
                for found in dict.fromkeys(control_strings(value)):
                    if found == "</think>":
                        self.fault(
                            path,
                            "holds '</think>'",
                            "Remove it: some chat templates delete what stands before it",
                        )
                    else:
                        self.notice(
                            path, f"holds the control string {found!r}", "It is tokenised as ordinary text"
                        )
        elif isinstance(value, list):
            for i, item in enumerate(value):
                self._texts(item, f"{path}[{i}]")
        elif isinstance(value, dict):
            for key in value.keys_twice if isinstance(value, RepeatedKeys) else ():
                self.fault(
                    f"{path}.{key}" if path else key, "stands twice in one object", "Keep one of the two"
                )
            for key, item in value.items():
                self._texts(item, f"{path}.{key}" if path else key)

    def _provides(self) -> None:
        names = [p for p in _list(self.data.get("provides")) if isinstance(p, str)]
        if "provides" in self.data and self.data["provides"] == []:
            self.fault("provides", "is empty", f"Name at least one of: {', '.join(TASK_NAMES)}")
        for name in sorted({n for n in names if names.count(n) > 1}):
            self.fault("provides", f"names {name!r} twice", "Name it once")

    def _book(self) -> None:
        language = _dict(self.data.get("book")).get("language")
        if isinstance(language, str):
            import langcodes

            known = langcodes.tag_is_valid(language) and langcodes.Language.get(language).language
            if known in (False, None, "mul", "zxx"):
                self.fault(
                    "book.language", f"{language!r} is no BCP 47 tag", "Write one such as 'en' or 'pt-BR'"
                )

    def _one_name(self, name: Any, path: str) -> bool:
        if not isinstance(name, str):
            return False
        if len(name.splitlines()) > 1:
            self.fault(path, f"{brief(name)} has a line break", "A name is one line")
        elif name != name.strip():
            self.fault(path, f"{name!r} has white space at its edges", f"Write {name.strip()!r}")
        elif not unicodedata.is_normalized("NFC", name):
            self.fault(path, f"{name!r} is not in Unicode NFC", "Normalise the file's names to NFC")
        elif name in RESERVED_NAMES:
            self.fault(path, f"{name!r} is reserved", "Use another name")
        else:
            return True
        return False

    def _names(self, kind: str) -> dict[str, str]:
        """Return official name by any name; doubled names and clashing aliases are faults."""
        officials: dict[str, str] = {}
        items = _list(self.data.get(kind))
        for i, item in enumerate(items):
            name, path = _dict(item).get("name"), f"{kind}[{i}].name"
            self._one_name(name, path)
            if isinstance(name, str) and name in officials:
                self.fault(path, f"{name!r} is the name of two {kind}", "Merge them, or rename one")
            elif isinstance(name, str):
                officials[name] = name
        names = dict(officials)
        for i, item in enumerate(items):
            owner = _dict(item).get("name")
            for j, alias in enumerate(_list(_dict(item).get("aliases"))):
                path = f"{kind}[{i}].aliases[{j}]"
                if not self._one_name(alias, path):
                    continue
                if alias == owner:
                    self.fault(path, f"{alias!r} is the official name itself", "Remove the alias")
                elif alias in names:
                    whose = f"{names[alias]!r}" if names[alias] != owner else "the same one, twice"
                    self.fault(path, f"{alias!r} also names {whose}", "An alias names one of them only")
                elif isinstance(owner, str):
                    names[alias] = owner
        return names

    def _location_state(self, holder: dict[str, Any], key: str, path: str) -> LocationState | None:
        """Return a state, its keys made canonical in place; None where there is none of the right shape."""
        if holder.get(key) is None:
            return None
        self._canonical_keys(holder[key], f"{path}.{key}")
        try:
            state = LocationState.model_validate(holder[key])
        except ValidationError:
            return None
        for inner, wrong, right in entity_faults(state, self.characters):
            self.fault(f"{path}.{key}.{inner}", wrong, right)
        return state

    def _canonical_keys(self, state: Any, path: str) -> None:
        if not isinstance(state, dict):
            return
        for printed, canonical in _PRINTED_KEYS.items():
            if printed in state and canonical in state:
                self.fault(
                    f"{path}.{printed}", f"stands beside {canonical!r}", "Keep one of the two spellings"
                )
        renamed = {_PRINTED_KEYS.get(key, key): value for key, value in state.items()}
        state.clear()
        state.update(renamed)
        for i, part in enumerate(_list(state.get("sub_locations"))):
            self._canonical_keys(part, f"{path}.sub_locations[{i}]")

    def _needs(self, task: str, value: Any, path: str) -> None:
        if task in self.provides and value is None:
            self.fault(
                path,
                f"is missing, and the source provides {task}",
                "Add it, or take the task out of provides",
            )

    def _short_description(self, text: Any, path: str) -> None:
        if isinstance(text, str):
            words, (low, high) = len(text.split()), _SHORT_DESCRIPTION_WORDS
            if not low <= words <= high:
                self.notice(path, f"has {words} words", f"A short description has {low} to {high}")

    def _states_at_start(self) -> None:
        self._needs("world_update", self.data.get("initial_global_state"), "initial_global_state")
        for i, character in enumerate(_list(self.data.get("characters"))):
            initial = _dict(_dict(character).get("initial"))
            path = f"characters[{i}].initial"
            self._needs("character_update", initial.get("profile"), f"{path}.profile")
            self._needs("character_update", initial.get("short_description"), f"{path}.short_description")
            self._short_description(initial.get("short_description"), f"{path}.short_description")
        for i, location in enumerate(_list(self.data.get("locations"))):
            location = _dict(location)
            self._needs("world_update", location.get("initial"), f"locations[{i}].initial")
            state = self._location_state(location, "initial", f"locations[{i}]")
            if isinstance(location.get("name"), str):
                self.states[location["name"]] = state

    def _resolve(self, name: Any, names: dict[str, str], path: str, kind: str) -> Any:
        if not isinstance(name, str):
            return name
        official = names.get(name)
        if official is None and name in RESERVED_NAMES:
            self.fault(path, f"{name!r} is reserved", "It may act alone, but is no character: remove it")
            return name
        if official is None:
            near = difflib.get_close_matches(name, names, n=1)
            right = f"Did you mean {near[0]!r}?" if near else f"Add it to {kind}, or as an alias"
            self.fault(path, f"{name!r} is no {kind[:-1]} of this book", right)
            return name
        return official

    def _people(self, holder: dict[str, Any], key: str, path: str) -> list[Any]:
        """Resolve a list of character names in place; a member that stands twice is a fault."""
        resolved = []
        for i, name in enumerate(_list(holder.get(key))):
            official = self._resolve(name, self.characters, f"{path}[{i}]", "characters")
            if official in resolved:
                self.fault(f"{path}[{i}]", f"{official!r} stands twice", "Name each member once")
            resolved.append(official)
        if isinstance(holder.get(key), list):
            holder[key] = resolved
        return resolved

    def _per_person(self, scene: dict[str, Any], key: str, cast: list[Any], path: str) -> dict[str, Any]:
        """Resolve the keys of {name: value} in place; only members of the cast may stand there."""
        resolved: dict[str, Any] = {}
        for name, value in _dict(scene.get(key)).items():
            at = f"{path}.{key}[{name!r}]"
            official = self._resolve(name, self.characters, at, "characters")
            if official in resolved:
                self.fault(at, f"{official!r} has two entries", "Keep one of the two")
            elif official in self.characters and official not in cast:
                self.fault(
                    at, f"{official!r} is not in the cast", "Add the name to the cast, or remove the entry"
                )
            resolved[official] = value
        if isinstance(scene.get(key), dict):
            scene[key] = resolved
        return resolved

    def _place(self, holder: dict[str, Any], path: str) -> None:
        if holder.get("location") is not None:
            holder["location"] = self._resolve(
                holder["location"], self.locations, f"{path}.location", "locations"
            )

    def _actors(self, interaction: dict[str, Any], cast: list[Any], path: str) -> None:
        actors = interaction.get("actors")
        if not isinstance(actors, list):
            return
        if ENVIRONMENT in actors:
            if actors != [ENVIRONMENT]:
                self.fault(
                    f"{path}.actors",
                    f"{brief(actors)} mixes Environment with others",
                    f'Write ["{ENVIRONMENT}"] alone',
                )
            return
        resolved = self._people(interaction, "actors", f"{path}.actors")
        for i, name in enumerate(resolved):
            if isinstance(name, str) and name in self.characters and name not in cast:
                self.fault(
                    f"{path}.actors[{i}]", f"{name!r} acts but is not in the cast", "Add the name to the cast"
                )
        # Two actor lists are the same if their sets are: cast order makes them equal.
        if all(name in cast for name in resolved):
            interaction["actors"] = sorted(resolved, key=cast.index)

    def _brackets(self, content: Any, path: str) -> None:
        if isinstance(content, str):
            for at in unclosed_brackets(content):
                self.notice(
                    path, f"{content[at]!r} at {at} is never closed", "It runs to the end of its line"
                )

    def _previous_scene(self, previous: dict[str, Any]) -> None:
        self._place(previous, "previous_scene")
        cast = self._people(previous, "cast", "previous_scene.cast")
        self._per_person(previous, "motivations", cast, "previous_scene")
        for i, interaction in enumerate(_list(previous.get("interactions"))):
            at = f"previous_scene.interactions[{i}]"
            self._actors(_dict(interaction), cast, at)
            self._brackets(_dict(interaction).get("content"), f"{at}.content")

    def _scenes(self) -> None:
        global_state = _stripped(self.data.get("initial_global_state"))
        profiles = {
            _dict(c).get("name"): _stripped(_dict(_dict(c).get("initial")).get("profile"))
            for c in _list(self.data.get("characters"))
            if isinstance(_dict(c).get("name"), str)
        }
        for t, scene in enumerate(_list(self.data.get("scenes"))):
            scene, path = _dict(scene), f"scenes[{t}]"
            if isinstance(scene.get("index"), int) and scene["index"] != t:
                self.fault(f"{path}.index", f"is {scene['index']}", f"Indices count from 0: write {t}")
            self._place(scene, path)
            cast = self._people(scene, "cast", f"{path}.cast")
            self._motivations(scene, cast, path)
            interactions = _list(scene.get("interactions"))
            if not interactions:
                self.notice(f"{path}.interactions", "is empty", "The scene gives no turn to train on")
            for i, interaction in enumerate(interactions):
                interaction, at = _dict(interaction), f"{path}.interactions[{i}]"
                self._actors(interaction, cast, at)
                self._brackets(interaction.get("content"), f"{at}.content")
                new_global = _stripped(interaction.get("global_state"))
                if new_global is not None and new_global == global_state:
                    self.fault(
                        f"{at}.global_state", "equals the current state", "Leave it out where nothing changed"
                    )
                global_state = new_global or global_state
                self._new_place_state(interaction, scene.get("location"), at)
            self._updates(scene, cast, profiles, path)

    def _motivations(self, scene: dict[str, Any], cast: list[Any], path: str) -> None:
        motivations = self._per_person(scene, "motivations", cast, path)
        if "motivation_update" not in self.provides:
            return
        for name in cast:
            if isinstance(name, str) and name not in motivations:
                at, wrong = f"{path}.motivations", f"{name!r} is in the cast and has none"
                # A source that keeps full character states always knows why they come; others may not.
                if "character_update" in self.provides:
                    self.fault(at, wrong, "Add it, or take motivation_update out of provides")
                else:
                    self.notice(
                        at, wrong, "Prompts show (Not recorded.), and the row is counted as not_in_source"
                    )

    def _new_place_state(self, interaction: dict[str, Any], location: Any, path: str) -> None:
        if interaction.get("location_state") is None:
            return
        if location is None:
            wrong = "changes a place in a scene without one"
            self.fault(f"{path}.location_state", wrong, "Give the scene a location")
        state = self._location_state(interaction, "location_state", path)
        if state is None or not isinstance(location, str):
            return
        if state == self.states.get(location):
            wrong = "equals the current state"
            self.fault(f"{path}.location_state", wrong, "Leave it out where nothing changed")
        self.states[location] = state

    def _updates(
        self, scene: dict[str, Any], cast: list[Any], profiles: dict[Any, str | None], path: str
    ) -> None:
        updates = self._per_person(scene, "character_updates", cast, path)
        for name, update in updates.items():
            at, update = f"{path}.character_updates[{name!r}]", _dict(update)
            profile = _stripped(update.get("profile"))
            if profile is not None and profile == profiles.get(name):
                self.fault(f"{at}.profile", "equals the current profile", "Write null where nothing changed")
            if profile is not None:
                profiles[name] = profile
            self._short_description(update.get("short_description"), f"{at}.short_description")
        if "character_update" in self.provides:
            for name in cast:
                if isinstance(name, str) and name not in updates:
                    at = f"{path}.character_updates"
                    self.fault(
                        at,
                        f"{name!r} is in the cast and has none",
                        "Add it, or take the task out of provides",
                    )
