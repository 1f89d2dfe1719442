"""The least summed negative log likelihood that SciPy's L-BFGS finds from many starts: plain NumPy, no fedgauss."""

import numpy as np
import scipy.linalg
import scipy.optimize
import threadpoolctl
from functions import Matrix

NOISE_FLOOR = 1e-4


def search(clients: dict[str, tuple[Matrix, Matrix]], *, ard: bool, seed: int, starts: int = 4) -> float:
    """The minimum for an RBF kernel over the box that fedgauss searches, targets standardised by client.

    Args:
        clients: X [N, D] and y [N] by name.
        ard: One lengthscale an input, or one for all.
        seed: Of the starts.
        starts: How many.
    """
    standardised = [(X, (y - y.mean()) / y.std()) for X, y in clients.values()]
    num_inputs = standardised[0][0].shape[1]
    num_lengths = num_inputs if ard else 1
    low = np.log([1e-6] * (num_lengths + 1) + [NOISE_FLOOR])
    high = np.full(len(low), np.log(1e6))
    draw = np.random.default_rng([seed, 4])
    best = np.inf
    for _ in range(starts):
        start = np.log(
            np.concatenate(
                [
                    draw.uniform(0.2, 2.0, num_lengths) * np.sqrt(num_inputs),
                    draw.uniform(0.5, 5.0, 1),
                    10.0 ** draw.uniform(-3.5, -1.0, 1),
                ]
            )
        )
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            found = scipy.optimize.minimize(
                lambda u: _objective(u, standardised, num_lengths), start, jac=True, method="L-BFGS-B",
                bounds=list(zip(low, high, strict=True)), options={"maxiter": 300, "ftol": 1e-13, "gtol": 1e-7},
            )  # fmt: skip
        best = min(best, float(found.fun))
    return best


def _objective(u: Matrix, clients: list[tuple[Matrix, Matrix]], num_lengths: int) -> tuple[float, Matrix]:
    """sum_k -log p(y_k | X_k, theta) and its gradient in log theta."""
    lengths, variance, noise = np.exp(u[:num_lengths]), np.exp(u[-2]), np.exp(u[-1])
    total, gradient = 0.0, np.zeros(len(u))
    for X, y in clients:
        scaled = X / lengths
        squares = (scaled**2).sum(1)
        distance = np.maximum(squares[:, None] + squares[None, :] - 2.0 * scaled @ scaled.T, 0.0)
        K = variance * np.exp(-0.5 * distance)
        try:
            factor = scipy.linalg.cho_factor(K + noise * np.eye(len(y)), lower=True)
        except np.linalg.LinAlgError:
            return 1e10, gradient
        alpha = scipy.linalg.cho_solve(factor, y)
        log_determinant = 2.0 * np.log(np.diag(factor[0])).sum()
        total += 0.5 * (y @ alpha + log_determinant + len(y) * np.log(2.0 * np.pi))
        W = 0.5 * (scipy.linalg.cho_solve(factor, np.eye(len(y))) - np.outer(alpha, alpha))
        WK = W * K
        if num_lengths == 1:
            gradient[0] += (WK * distance).sum()
        else:
            # sum_ij WK_ij (x_id - x_jd)^2 = 2 sum_i r_i x_id^2 - 2 x_d' WK x_d
            gradient[:num_lengths] += 2.0 * (WK.sum(1) @ scaled**2 - (scaled * (WK @ scaled)).sum(0))
        gradient[-2] += WK.sum()
        gradient[-1] += noise * np.trace(W)
    return total, gradient
