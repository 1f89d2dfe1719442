"""Dense Gaussian process regression, slow and obvious, for sizes at which nobody would use a posterior of large clients."""

import numpy as np
from scipy.stats import multivariate_normal


def covariance(kind, X, Z, lengthscale, variance):
    """k(X, Z) from the textbook formula (Rasmussen and Williams 2006, section 4.2)."""
    r = np.sqrt((((X[:, None, :] - Z[None, :, :]) / lengthscale) ** 2).sum(2))
    if kind == "rbf":
        return variance * np.exp(-(r**2) / 2)
    if kind == "matern12":
        return variance * np.exp(-r)
    if kind == "matern32":
        return variance * (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    if kind == "matern52":
        return variance * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    raise ValueError(kind)


def posterior(Kxx, Kxs, kss, y, noise_variance):
    """Mean and variance of f at the test inputs (equations 2.25 and 2.26)."""
    K = Kxx + noise_variance * np.eye(len(y))
    solved = np.linalg.solve(K, np.column_stack([y, Kxs]))
    return Kxs.T @ solved[:, 0], kss - (Kxs * solved[:, 1:]).sum(0)


def log_evidence(Kxx, y, noise_variance):
    """log N(y; 0, K + noise_variance I)."""
    return multivariate_normal(cov=Kxx + noise_variance * np.eye(len(y))).logpdf(y)


def sparse_posterior(Kuu, Kux, Kus, kss, y, noise_variance):
    """Mean and variance of f at the test inputs through inducing inputs (Titsias 2009, equations 6 and 10)."""
    A = Kuu + Kux @ Kux.T / noise_variance
    mean = Kus.T @ np.linalg.solve(A, Kux @ y) / noise_variance
    variance = kss - (Kus * np.linalg.solve(Kuu, Kus)).sum(0) + (Kus * np.linalg.solve(A, Kus)).sum(0)
    return mean, variance


def collapsed_bound(Kuu, Kux, kxx, y, noise_variance):
    """log N(y; 0, Q + noise_variance I) - trace(K - Q) / (2 noise_variance) (equation 9)."""
    Q = Kux.T @ np.linalg.solve(Kuu, Kux)
    return log_evidence(Q, y, noise_variance) - (kxx.sum() - np.trace(Q)) / (2 * noise_variance)


def draw(K, rng):
    """A function value at every input, from the prior."""
    values, vectors = np.linalg.eigh(K)
    return vectors @ (np.sqrt(np.maximum(values, 0)) * rng.standard_normal(len(K)))
