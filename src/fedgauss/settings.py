"""Settings objects: frozen, keyword-only dataclasses whose errors name the nearest setting."""

import dataclasses
import functools
import math
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from fedgauss.errors import SettingsError, suggest

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def settings(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that refuses an unknown setting by name.

    Example:
        >>> @settings
        ... class Method:
        ...     rounds: int = 100
        >>> Method(ruonds=5)
        Traceback (most recent call last):
        fedgauss.errors.SettingsError: Method has no setting 'ruonds'; did you mean "rounds"?. It has rounds
    """
    made: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    known = [field.name for field in dataclasses.fields(made)]
    init = made.__init__

    @functools.wraps(init)
    def __init__(self: Any, *positional: Any, **values: Any) -> None:
        check_names(cls.__name__, values, known)
        init(self, *positional, **values)

    made.__init__ = __init__
    return made  # type: ignore[no-any-return]


def check_names(owner: str, given: Any, known: list[str]) -> None:
    """Refuse the first name that is not known.

    Raises:
        SettingsError: Names the owner, the unknown name and the nearest known one.
    """
    for name in given:
        if name not in known:
            raise SettingsError(f"{owner} has no setting {name!r}{suggest(name, known)}. It has {', '.join(known)}")


def check_choice(owner: str, name: str, value: Any, choices: tuple[Any, ...]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        SettingsError: Names the setting, what came, and the choices.
    """
    if value not in choices:
        near = suggest(value, [c for c in choices if isinstance(c, str)]) if isinstance(value, str) else ""
        shown = ", ".join(repr(choice) for choice in choices)
        raise SettingsError(f"{owner}({name}={value!r}): expected one of {shown}{near}")


def check_positive(owner: str, name: str, value: Any, *, whole: bool = False) -> None:
    """Refuse what is not a positive (whole) number.

    Raises:
        SettingsError: Names the setting and what came.
    """
    kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < math.inf:
        raise SettingsError(f"{owner}({name}={value!r}): expected a positive {'whole ' if whole else ''}number")


def check_kind(name: str, value: Any, kinds: Any, expected: str) -> None:
    """Refuse an argument of another kind, by its type alone: it may hold data.

    Raises:
        SettingsError: Names the argument, the type that came, and what was expected.

    Example:
        >>> check_kind("schedule", "sequential", int, "fg.Sequential()")
        Traceback (most recent call last):
        fedgauss.errors.SettingsError: schedule: got str, expected fg.Sequential()
    """
    if isinstance(value, kinds) and not isinstance(value, type):
        return
    came = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise SettingsError(f"{name}: got {came}, expected {expected}")


def number_of(owner: str, name: str, value: Any) -> float:
    """A number, also where it comes as an array of one, as in `parameters_`.

    Raises:
        SettingsError: Names the setting and what came.
    """
    try:
        numbers = np.asarray(value, dtype=np.float64) if not isinstance(value, str | bool) else np.empty(0)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.size != 1:
        came = repr(value) if isinstance(value, str | bool) else type(value).__name__
        raise SettingsError(f"{owner}({name}={came}): expected a number")
    return float(numbers.item())


def check_seed(seed: Any) -> None:
    """Refuse what no random generator can start from.

    Raises:
        SettingsError: Says what came.
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed={seed!r}: expected a whole number from 0 to below 2**63")
