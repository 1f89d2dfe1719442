"""The errors users see: who, what came, what was expected, what to do; never data, never a path of a client."""

import difflib
from collections.abc import Iterable


class FedgaussError(Exception):
    """Everything fedgauss raises on purpose."""


class DataError(FedgaussError, ValueError):
    """Bad input data: names the client and the column."""


class SettingsError(FedgaussError, ValueError):
    """An unknown or impossible setting, kernel or run-file key."""


class ScheduleError(FedgaussError):
    """An algorithm cannot run under this schedule."""


class ReplyError(FedgaussError):
    """A client's reply cannot be counted: names the client and the array."""


class RunError(FedgaussError):
    """The run could not go on: too few clients answered, or what was saved does not fit."""


class NotPositiveDefiniteError(FedgaussError):
    """A covariance could not be factorised: says which jitter was tried."""


def suggest(name: str, known: Iterable[str]) -> str:
    """'; did you mean "rbf"?' when a known name is near, else ''.

    Example:
        >>> suggest("rbff", ["rbf", "linear"])
        '; did you mean "rbf"?'
    """
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.5)
    return f'; did you mean "{by_lower[near[0]]}"?' if near else ""
