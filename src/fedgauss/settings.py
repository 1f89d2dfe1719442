"""Settings objects: frozen, keyword-only dataclasses whose errors name the nearest setting."""

import dataclasses
import functools
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from fedgauss.errors import SettingsError, suggest

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
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
    if not isinstance(value, kinds) or isinstance(value, bool) or not value > 0:
        raise SettingsError(f"{owner}({name}={value!r}): expected a positive {'whole ' if whole else ''}number")


def check_seed(seed: Any) -> None:
    """Refuse what no random generator can start from.

    Raises:
        SettingsError: Says what came.
    """
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise SettingsError(f"seed={seed!r}: expected a whole number from 0 to below 2**63")
