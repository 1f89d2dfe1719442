"""Condition a prior on data: densely where that is affordable, else exactly in one dimension, else sparsely."""

import importlib.util
from typing import Any, Literal

import numpy as np

from fedgauss.errors import SettingsError
from fedgauss.gp.exact import DensePosterior
from fedgauss.gp.kernels import Kernel, Parameters
from fedgauss.gp.posterior import Posterior

Choice = Literal["auto", "dense", "statespace", "sparse"]
CHOICES = ("auto", "dense", "statespace", "sparse")

DENSE_ROWS = 4096
"""A dense posterior of this many rows takes a second or two and 134 MB."""


def condition(kernel: Kernel, parameters: Parameters, X: Any, y: Any, *, posterior: Choice = "auto") -> Posterior:
    """The posterior of f given y at X. Which kind it is stands in `kind`, and what is worth knowing in `notes`.

    Args:
        kernel: The prior's covariance.
        parameters: Of the kernel, with `noise_variance`.
        X: [N, D].
        y: [N].
        posterior: "dense"; "statespace", exact and O(N) for Matern kernels over one input; "sparse", with inducing
            inputs; or "auto": dense up to 4,096 rows, then state space where it is exact and installed, else sparse.

    Raises:
        SettingsError: If "statespace" is asked for and cannot be had.

    Example:
        >>> from fedgauss.gp.kernels import RBF
        >>> x = np.linspace(0.0, 1.0, 5)[:, None]
        >>> condition(RBF(), RBF().start(1) | {"noise_variance": np.array(0.1)}, x, np.sin(x[:, 0])).kind
        'dense'
    """
    from fedgauss.gp import sparse, state_space

    if posterior not in CHOICES:
        raise SettingsError(f"posterior={posterior!r}: expected one of {', '.join(CHOICES)}")
    is_exact = state_space.supports(kernel, X.shape[1])
    if posterior == "auto":
        has_extra = importlib.util.find_spec("tinygp") is not None
        posterior = "dense" if len(X) <= DENSE_ROWS else "statespace" if is_exact and has_extra else "sparse"
    if posterior == "dense":
        return DensePosterior.condition(kernel, parameters, X, y)
    if posterior == "statespace":
        if not is_exact:
            raise SettingsError(
                f'posterior="statespace" is exact for sums of Matern kernels over one input; got {kernel.name} over'
                f' {X.shape[1]} input(s). Use "auto" or "sparse"'
            )
        return state_space.StateSpacePosterior.condition(kernel, parameters, np.asarray(X)[:, 0], y)
    return sparse.SparsePosterior.condition(kernel, parameters, X, y)
