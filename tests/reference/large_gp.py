"""Dense Gaussian process regression, slow and obvious, at sizes that need no posterior of large clients."""

from typing import Any, TypeAlias

import numpy as np
from scipy.stats import multivariate_normal

Values: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def covariance(kind: str, X: Values, Z: Values, lengthscale: float, variance: float) -> Values:
    """k(X, Z) from the textbook formula (Rasmussen and Williams 2006, section 4.2)."""
    r = np.sqrt((((X[:, None, :] - Z[None, :, :]) / lengthscale) ** 2).sum(2))
    if kind == "rbf":
        profile = np.exp(-(r**2) / 2)
    elif kind == "matern12":
        profile = np.exp(-r)
    elif kind == "matern32":
        profile = (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    else:
        assert kind == "matern52"
        profile = (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    return np.asarray(variance * profile)


def posterior(Kxx: Values, Kxs: Values, kss: Values, y: Values, noise_variance: float) -> tuple[Values, Values]:
    """Mean and variance of f at the test inputs (equations 2.25 and 2.26)."""
    K = Kxx + noise_variance * np.eye(len(y))
    solved = np.linalg.solve(K, np.column_stack([y, Kxs]))
    return Kxs.T @ solved[:, 0], kss - (Kxs * solved[:, 1:]).sum(0)


def log_evidence(Kxx: Values, y: Values, noise_variance: float) -> float:
    """log N(y; 0, K + noise_variance I)."""
    return float(multivariate_normal(cov=Kxx + noise_variance * np.eye(len(y))).logpdf(y))


def sparse_posterior(
    Kuu: Values, Kux: Values, Kus: Values, kss: Values, y: Values, noise_variance: float
) -> tuple[Values, Values]:
    """Mean and variance of f at the test inputs through inducing inputs (Titsias 2009, equations 6 and 10)."""
    A = Kuu + Kux @ Kux.T / noise_variance
    mean = Kus.T @ np.linalg.solve(A, Kux @ y) / noise_variance
    variance = kss - (Kus * np.linalg.solve(Kuu, Kus)).sum(0) + (Kus * np.linalg.solve(A, Kus)).sum(0)
    return mean, variance


def residual(Kuu: Values, Kux: Values, kxx: Values) -> float:
    """trace(K - Q), Q = Kxu Kuu^-1 Kux."""
    return float(kxx.sum() - np.trace(Kux.T @ np.linalg.solve(Kuu, Kux)))


def collapsed_bound(Kuu: Values, Kux: Values, kxx: Values, y: Values, noise_variance: float) -> float:
    """log N(y; 0, Q + noise_variance I) - trace(K - Q) / (2 noise_variance) (Titsias 2009, equation 9)."""
    Q = Kux.T @ np.linalg.solve(Kuu, Kux)
    return log_evidence(Q, y, noise_variance) - residual(Kuu, Kux, kxx) / (2 * noise_variance)
