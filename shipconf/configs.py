"""Configs of one kernel: from `triton.Config` to plain knobs and back, and their validation.

A stored config reaches Triton only after `Knobs.accept`: the Triton interpreter validates
nothing, and a compiler's complaint about a stale knob helps nobody.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .device import foreign_options, launch_options
from .errors import warn_once
from .keys import canonical, storable, to_json
from .records import OPTIONS, Device, option_faults

Hook = Callable[[dict[str, Any]], Any]


class UnfitError(ValueError):
    """A config that must not reach Triton, with the reason."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A config ready to launch: knobs and launch options, and the config's own `pre_hook`."""

    flat: dict[str, Any]
    pre_hook: Hook | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The config as a record stores it."""
        return {name: to_json(canonical(value)) for name, value in self.flat.items()}

    @property
    def identity(self) -> str:
        """Equal for equal configs, in whatever order their knobs stand."""
        return self._identity(self.flat)

    @property
    def knobs_identity(self) -> str:
        """Equal for configs that differ in launch options at most."""
        return self._identity({k: v for k, v in self.flat.items() if k not in OPTIONS})

    @staticmethod
    def _identity(flat: Mapping[str, Any]) -> str:
        values = {name: canonical(value) for name, value in flat.items()}
        parts = {
            # What a file cannot hold may look like another object: these two are told apart.
            name: to_json(value) if storable(value) else [to_json(value), id(flat[name])]
            for name, value in values.items()
        }
        return json.dumps(parts, sort_keys=True)

    def __str__(self) -> str:
        return config_text(self.document)


def config_text(document: Mapping[str, Any]) -> str:
    """A stored config in one line, for people and as a name: `BLOCK_M=64, num_warps=4`."""
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in document.items())


def from_triton(config: Any) -> Choice:
    """The choice that a `triton.Config` makes, every launch option spelled out."""
    options = {name: getattr(config, name, None) for name in OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    return Choice({**config.kwargs, **given}, config.pre_hook)


def to_triton(flat: Mapping[str, Any], pre_hook: Hook | None = None) -> Any:
    """The `triton.Config` of a flat config, for tools that expect one."""
    from triton import Config

    options = {name: flat[name] for name in OPTIONS if flat.get(name) is not None}
    knobs = {name: value for name, value in flat.items() if name not in OPTIONS}
    return Config(knobs, **options, pre_hook=pre_hook)


def distinct(choices: Iterable[Choice | None], *, ignore_options: bool = False) -> list[Choice]:
    """The choices in order, each once.

    With `ignore_options`, those that differ in launch options alone count as one.
    """
    found: dict[str, Choice] = {}
    for choice in choices:
        if choice is not None:
            name = choice.knobs_identity if ignore_options else choice.identity
            found.setdefault(name, choice)
    return list(found.values())


class Knobs:
    """What configs of one kernel may set, learned from its signature and live configs."""

    def __init__(
        self, name: str, signature: inspect.Signature, configs: Sequence[Any], default: Any
    ) -> None:
        self.name = name
        self.parameters = signature.parameters
        self.configs = list(configs)
        self.live = [from_triton(config) for config in configs]
        self._examples = [*self.live, from_triton(default)] if _is_config(default) else self.live
        self.set_by_configs = {name for choice in self._examples for name in choice.flat}
        self.tuned = self.set_by_configs & self.parameters.keys()
        self.hooks = {choice.pre_hook for choice in self.live}

    # What follows costs milliseconds for a hundred configs, so it waits until it is needed.

    @functools.cached_property
    def _by_identity(self) -> dict[str, tuple[Choice, Any]]:
        # The default comes last, so that a live config it equals takes its place.
        pairs = list(zip(self._examples, [*self.configs, None]))
        return {choice.identity: (choice, config) for choice, config in reversed(pairs)}

    @functools.cached_property
    def _values(self) -> dict[str, dict[str, list[Any]]]:
        """The different values that live configs have for each knob, by their JSON text."""
        seen: dict[str, dict[Any, Any]] = {}
        for choice in self._examples:
            for knob, value in choice.flat.items():
                seen.setdefault(knob, {}).setdefault((type(value), _hashable(value)), value)
        texts: dict[str, dict[str, list[Any]]] = {}
        for knob, values in seen.items():
            for value in values.values():
                text = json.dumps(to_json(canonical(value)), sort_keys=True)
                texts.setdefault(knob, {}).setdefault(text, []).append(value)
        return texts

    def accept(
        self, config: Mapping[str, Any], passed: frozenset[str], device: Device, origin: str = ""
    ) -> Choice:
        """The choice that a stored config makes on the device. Raises `UnfitError` with the reason.

        `passed` are the names that the launch itself passes. Options of other backends are left
        out with one warning.
        """
        flat = self._without_foreign(config, device, origin)
        for knob, what in option_faults(flat):
            raise UnfitError(f"{knob} {what}")
        if flat.get("num_ctas", 1) > 1 and device.arch.startswith(("sm_7", "sm_8")):
            raise UnfitError(f"num_ctas is {flat['num_ctas']}, and {device.arch} has no clusters")
        options = launch_options(device.backend)
        for knob in flat:
            if knob in passed:
                raise UnfitError(f"{knob} is passed by the launch itself")
            if knob not in self.parameters and knob not in options:
                raise UnfitError(f"{knob} is no parameter of the kernel and no launch option")
            flat[knob] = self._live_value(knob, flat[knob])
        for knob in self.tuned - flat.keys() - passed:
            default = self.parameters[knob].default
            if default is inspect.Parameter.empty:
                raise UnfitError(f"{knob} is missing")
            flat[knob] = getattr(default, "value", default)
        choice = Choice(flat)
        return Choice(flat, self._hook(choice))

    def live_config(self, choice: Choice) -> Any:
        """The `triton.Config` among the live ones that equals the choice, or None."""
        return self._by_identity.get(_complete(choice).identity, (None, None))[1]

    def _without_foreign(
        self, config: Mapping[str, Any], device: Device, origin: str
    ) -> dict[str, Any]:
        foreign = foreign_options(device.backend) - self.parameters.keys()
        left_out = [knob for knob in config if knob in foreign]
        if left_out:
            warn_once(
                self.name, ("foreign", device.backend),
                f"{self.name}: {', '.join(left_out)} in {origin or 'a stored config'} are options "
                f"of another backend than {device.backend}; they are left out",
            )  # fmt: skip
        return {knob: value for knob, value in config.items() if knob not in foreign}

    def _live_value(self, knob: str, value: Any) -> Any:
        """The value to launch with: of the type, or the very object, that a candidate has."""
        known = self._values.get(knob, {})
        stored = json.dumps(value, sort_keys=True)
        same = known.get(stored, [])
        if isinstance(value, dict):  # a dtype or another object, which only a live config can give
            if not same:
                raise UnfitError(f"{knob} is {stored}, which no live config has")
            if len(same) > 1:
                raise UnfitError(f"{knob} is {stored}, which several live values are called")
        if same:
            return same[0]
        kinds = sorted({type(canonical(v)).__name__ for values in known.values() for v in values})
        if known and knob not in OPTIONS and type(value).__name__ not in kinds:
            raise UnfitError(f"{knob} must be {' or '.join(kinds)}, not {json.dumps(value)}")
        return value

    def _hook(self, choice: Choice) -> Hook | None:
        """The live config's own hook. A record that equals none is unfit when hooks differ."""
        if len(self.hooks) == 1:
            return next(iter(self.hooks))
        live, _ = self._by_identity.get(_complete(choice).identity, (None, None))
        if live is None:
            raise UnfitError("it equals no live config, and those have different pre_hooks")
        return live.pre_hook


def _complete(choice: Choice) -> Choice:
    """The choice with the launch options that it leaves out at `triton.Config`'s defaults."""
    return from_triton(to_triton(choice.flat))


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _is_config(value: Any) -> bool:
    return hasattr(value, "kwargs") and hasattr(value, "num_warps")
