"""Exact Gaussian processes, dense and slow, written from the equations with NumPy and SciPy alone.

Kernels are plain dicts (`name` and settings). Derivatives are by complex steps: Im f(x + i h) / h has no subtraction,
so that h = 1e-30 gives them to the last digit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]

STEP = 1e-30


def gram(config: dict[str, Any], parameters: dict[str, Any], X: Matrix, Z: Matrix) -> Matrix:
    """k(X, Z), entry by entry."""
    if config["name"] in ("sum", "product"):
        parts = config["terms"] if config["name"] == "sum" else config["factors"]
        grams = [gram(part, parameters[key], X, Z) for key, part in zip(keys(parts), parts, strict=True)]
        return sum(grams[1:], grams[0]) if config["name"] == "sum" else np.prod(grams, axis=0)
    active = config.get("active", range(X.shape[1]))
    out = np.empty((len(X), len(Z)), dtype=complex)
    for n, x in enumerate(X):
        for m, z in enumerate(Z):
            out[n, m] = value(config, parameters, x[list(active)], z[list(active)])
    return out if any(np.iscomplexobj(part) for part in (X, Z, *parameters.values())) else out.real


def value(config: dict[str, Any], parameters: dict[str, Any], x: Matrix, z: Matrix) -> Any:
    """k(x, z) of a single kernel."""
    variance = parameters.get("variance", 1.0)
    if config["name"] == "linear":
        return np.sum(variance * x * z)
    if config["name"] == "polynomial":
        return (parameters["shift"] + np.sum(variance * x * z)) ** config["degree"]
    lengthscale = parameters["lengthscale"]
    if config["name"] == "periodic":
        return variance * np.exp(-0.5 * np.sum((np.sin(np.pi * (x - z) / parameters["period"]) / lengthscale) ** 2))
    r2 = np.sum(((x - z) / lengthscale) ** 2)
    r = np.sqrt(r2)
    match config["name"]:
        case "rbf":
            return variance * np.exp(-r2 / 2)
        case "matern12":
            return variance * np.exp(-r)
        case "matern32":
            return variance * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
        case "matern52":
            return variance * (1 + np.sqrt(5) * r + 5 * r2 / 3) * np.exp(-np.sqrt(5) * r)
        case "rq":
            return variance * (1 + r2 / (2 * parameters["alpha"])) ** -parameters["alpha"]
    raise ValueError(config["name"])


def keys(parts: list[dict[str, Any]]) -> list[str]:
    """Names of the parts, numbered from the second of its kind."""
    names = [name(part) for part in parts]
    return [n if names[:i].count(n) == 0 else f"{n}_{names[:i].count(n) + 1}" for i, n in enumerate(names)]


def name(config: dict[str, Any]) -> str:
    """A kernel in words."""
    match config["name"]:
        case "sum":
            return "+".join(name(term) for term in config["terms"])
        case "product":
            return "*".join(f"({name(f)})" if f["name"] == "sum" else name(f) for f in config["factors"])
        case _:
            return str(config["name"])


def derivatives(function: Callable[[Matrix], Matrix], vector: Matrix) -> Matrix:
    """d function / d vector_i for each i, leading axis first."""
    return np.stack([function(vector + 1j * STEP * e).imag / STEP for e in np.eye(len(vector))])


def negative_log_marginal_likelihood(K: Matrix, y: Matrix) -> float:
    """Rasmussen and Williams 2006, eq. 2.30; `K` with noise."""
    sign, log_det = np.linalg.slogdet(K)
    assert sign == 1
    return float(0.5 * y @ np.linalg.solve(K, y) + 0.5 * log_det + 0.5 * len(y) * np.log(2 * np.pi))


def gradient(K: Matrix, dK: Matrix, y: Matrix) -> Matrix:
    """Minus Rasmussen and Williams 2006, eq. 5.9: tr((K^-1 - a a^T) dK_i) / 2."""
    a = np.linalg.solve(K, y)
    return np.array([0.5 * np.trace((np.linalg.inv(K) - np.outer(a, a)) @ dK_i) for dK_i in dK])


def posterior(K: Matrix, Ksx: Matrix, Kss: Matrix, y: Matrix) -> tuple[Matrix, Matrix]:
    """Mean and covariance of f: Rasmussen and Williams 2006, eqs. 2.25 and 2.26."""
    return Ksx @ np.linalg.solve(K, y), Kss - Ksx @ np.linalg.solve(K, Ksx.T)
