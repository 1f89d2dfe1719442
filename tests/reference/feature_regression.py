"""Bayesian linear regression on features, dense and slow: Yu et al., "Federated Bayesian Neural Regression".

Features are columns, Phi [R, N], as in the paper. The dual form (equations 2 to 6) makes N x N covariances and never a
sum over rows; the primal form (equations 8 to 13, 18) is there once, to show that the paper's two forms agree.
"""

from typing import Any, TypeAlias

import numpy as np

Matrix: TypeAlias = np.ndarray[Any, Any]


def covariance(Phi: Matrix, noise_std: float, weight_std: float) -> Matrix:
    """Of noisy targets: lambda^2 Phi^T Phi + sigma^2 I."""
    return np.asarray(weight_std**2 * Phi.T @ Phi + noise_std**2 * np.eye(Phi.shape[1]))


def log_density(Phi: Matrix, y: Matrix, noise_std: float, weight_std: float) -> float:
    """log N(y; 0, lambda^2 Phi^T Phi + sigma^2 I)."""
    K = covariance(Phi, noise_std, weight_std)
    sign, log_det = np.linalg.slogdet(K)
    assert sign == 1
    return float(-0.5 * (y @ np.linalg.solve(K, y) + log_det + len(y) * np.log(2 * np.pi)))


def posterior(Phi: Matrix, y: Matrix, Phi_new: Matrix, noise_std: float, weight_std: float) -> tuple[Matrix, Matrix]:
    """Mean and covariance of f at new inputs: equations 5 and 6 with k(x, x') = lambda^2 phi(x)^T phi(x')."""
    K = covariance(Phi, noise_std, weight_std)
    across = weight_std**2 * Phi_new.T @ Phi
    prior = weight_std**2 * Phi_new.T @ Phi_new
    return across @ np.linalg.solve(K, y), prior - across @ np.linalg.solve(K, across.T)


def primal_log_likelihood(Phi: Matrix, y: Matrix, noise_std: float, weight_std: float) -> float:
    """The paper's log Pr_BLR(y | X) of section 3.1, word for word: without the factor 1/2 and without N log 2 pi."""
    A = Phi @ Phi.T / noise_std**2 + np.eye(len(Phi)) / weight_std**2
    w = np.linalg.solve(A, Phi @ y) / noise_std**2
    log_det_prior = len(Phi) * np.log(weight_std**2)
    log_det = np.linalg.slogdet(A)[1]
    return float(-len(y) * np.log(noise_std**2) - log_det_prior - log_det - y @ y / noise_std**2 + w @ A @ w)
