"""The exact step of a Newton method in a trust region and a box, for the handful of variables a server optimises."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedgauss.linalg import eigh

_BISECTIONS = 80
_HALVINGS = 40
_HOLDS = 3
"""How often a step that leaves the box is taken again with the variables held at the bounds they met."""


def trust_region_step(
    gradient: Float[Array, " K"],
    hessian: Float[Array, "K K"],
    radius: Float[Array, ""],
    low: Float[Array, " K"],
    high: Float[Array, " K"],
) -> tuple[Float[Array, " K"], Float[Array, ""]]:
    """The step s that minimises g's + s'Hs / 2 within |s| <= radius and low <= s <= high, and by how much it does.

    The Hessian may be indefinite. A variable whose bound the gradient pushes against stays where it is; one that meets
    its bound on the way is held there and the rest is solved for again.

    Args:
        gradient: g.
        hessian: H, symmetric.
        radius: Of the trust region.
        low: How far each variable may still go down: zero or less.
        high: How far it may go up: zero or more.

    Returns:
        The step, and the decrease of the quadratic model, never negative.

    Example:
        >>> step, decrease = trust_region_step(
        ...     jnp.array([-1.0, 0.0]), jnp.eye(2), jnp.array(9.0), jnp.full(2, -9.0), jnp.full(2, 9.0)
        ... )
        >>> step.round(6).tolist(), round(float(decrease), 6)
        ([1.0, 0.0], 0.5)
    """
    held = ((low >= 0.0) & (gradient > 0.0)) | ((high <= 0.0) & (gradient < 0.0))
    step = jnp.zeros_like(gradient)
    for _ in range(_HOLDS):
        moved = jnp.where(held, step, 0.0)
        left = jnp.sqrt(jnp.maximum(radius**2 - moved @ moved, 0.0))
        free = _ball_step(gradient + hessian @ moved, hessian, left, ~held)
        step = jnp.where(held, moved, free)
        clipped = jnp.clip(step, low, high)
        held, step = held | (clipped != step), clipped
    # Holding a variable is a guess that may be wrong. Down the gradient, held to the box, some length always descends.
    lengths = radius / jnp.maximum(jnp.linalg.norm(gradient), 1e-300) * 0.5 ** jnp.arange(_HALVINGS)
    steps = jnp.concatenate(
        [step[None, :], jnp.clip(-lengths[:, None] * gradient[None, :], low[None, :], high[None, :])]
    )
    decreases = -(steps @ gradient + 0.5 * jnp.sum(steps @ hessian * steps, axis=1))
    best = jnp.argmax(decreases)
    return jnp.where(decreases[best] > 0.0, steps[best], 0.0), jnp.maximum(decreases[best], 0.0)


def _ball_step(
    gradient: Float[Array, " K"], hessian: Float[Array, "K K"], radius: Float[Array, ""], free: Bool[Array, " K"]
) -> Float[Array, " K"]:
    """The minimiser within the ball over the free variables: s = -(H + lambda I)^-1 g, lambda >= 0 (More, Sorensen)."""
    gradient = jnp.where(free, gradient, 0.0)
    both = free[:, None] & free[None, :]
    scale = 1.0 + jnp.max(jnp.abs(hessian))
    hessian = jnp.where(both, hessian, jnp.diag(jnp.full(gradient.shape, scale)))
    values, vectors = eigh(hessian)
    slopes = vectors.T @ gradient

    def length(shift: Float[Array, ""]) -> Float[Array, ""]:
        return jnp.asarray(jnp.linalg.norm(slopes / (values + shift)))

    least = jnp.maximum(0.0, -values[0]) + 1e-14 * scale
    most = least + jnp.linalg.norm(gradient) / jnp.maximum(radius, 1e-300)

    def halve(_: int, bounds: tuple[Float[Array, ""], Float[Array, ""]]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        lower, upper = bounds
        middle = 0.5 * (lower + upper)
        too_long = length(middle) > radius
        return jnp.where(too_long, middle, lower), jnp.where(too_long, upper, middle)

    _, shift = jax.lax.fori_loop(0, _BISECTIONS, halve, (least, most))
    shift = jnp.where(length(least) <= radius, least, shift)
    step = -slopes / (values + shift)
    # The hard case: no slope along the most negative curvature, and the ball not filled. Go to its edge that way.
    rest = jnp.sqrt(jnp.maximum(radius**2 - step[1:] @ step[1:], 0.0))
    is_hard = (values[0] < 0.0) & (length(least) < radius)
    step = step.at[0].set(jnp.where(is_hard, jnp.where(slopes[0] > 0.0, -rest, rest), step[0]))
    return jnp.where(free, vectors @ step, 0.0)
