"""FGPR's Algorithms 1 and 2 on full batches, line by line from the paper, in NumPy alone."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def gram(theta: Array, X: Array) -> tuple[Array, list[Array]]:
    """C = theta_1 exp(-|x - x'|^2 / (2 l^2)) + theta_2 I and its derivatives; theta = (l, variance, noise variance)."""
    ell, variance, noise = theta
    r2 = ((X[:, None, :] - X[None, :, :]) ** 2).sum(-1)
    k = np.exp(-r2 / (2 * ell**2))
    C = variance * k + noise * np.eye(len(X))
    return C, [variance * k * r2 / ell**3, k, np.eye(len(X))]


def stochastic_gradient(theta: Array, X: Array, y: Array) -> Array:
    """g = tr[C^-1 (I - y y' C^-1) dC/dtheta] / 2, below equation (2)."""
    C, dC = gram(theta, X)
    inverse = np.linalg.inv(C)
    inner = inverse @ (np.eye(len(X)) - np.outer(y, y) @ inverse)
    return np.array([np.trace(inner @ d) / 2 for d in dC])


def negative_log_likelihood(theta: Array, X: Array, y: Array) -> float:
    """Equation (2)."""
    C, _ = gram(theta, X)
    _, log_determinant = np.linalg.slogdet(C)
    return float(y @ np.linalg.solve(C, y) + log_determinant + len(y) * np.log(2 * np.pi)) / 2


def average(
    clients: list[tuple[Array, Array]],
    theta: Array,
    *,
    rounds: int,
    steps: int,
    rate: Callable[[int], float],
    scale: Callable[[int], Array],
    low: Array,
    high: Array,
    weights: list[float],
) -> Array:
    """Algorithm 1 with all clients, each taking E projected gradient steps on all its rows (Algorithm 2)."""
    for c in range(rounds):
        local = []
        for X, y in clients:
            theta_k = theta.copy()
            for e in range(steps):
                g = stochastic_gradient(theta_k, X, y) / scale(len(y))
                theta_k = np.clip(theta_k - rate(c * steps + e) * g, low, high)
            local.append(theta_k)
        theta = np.average(local, axis=0, weights=weights)
    return theta


def average_adam_softplus(
    clients: list[tuple[Array, Array]], theta: Array, floors: Array, *, rounds: int, steps: int, rate: float
) -> Array:
    """The authors' code: Adam on u, theta = floor + softplus(u), state reset every round, theta averaged by size."""
    for _ in range(rounds):
        local = []
        for X, y in clients:
            u = np.log(np.expm1(theta - floors))
            m = v = np.zeros_like(u)
            for t in range(1, steps + 1):
                theta_k = floors + np.log1p(np.exp(u))
                g = stochastic_gradient(theta_k, X, y) / len(y) / (1 + np.exp(-u))
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                u = u - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            local.append(floors + np.log1p(np.exp(u)))
        theta = np.average(local, axis=0, weights=[len(y) for _, y in clients])
    return theta
