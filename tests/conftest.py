"""Strict settings for every test: 64 bits, no silent promotion of rank, two host devices, shapes checked."""

from typing import Any

import jax
from hypothesis import settings
from jaxtyping import install_import_hook

# Strict promotion of dtypes is not asked for: Optax's bias correction raises a float to an integer count.
config: Any = jax.config
config.update("jax_enable_x64", True)
config.update("jax_numpy_rank_promotion", "raise")  # else [N] against [N, 1] silently becomes [N, N]
config.update("jax_num_cpu_devices", 2)  # before JAX starts

# Shapes in signatures are checked at run time; the hook acts on modules imported after it.
CHECKED = [
    "linalg",
    "gp.kernels",
    "gp.distances",
    "gp.exact",
    "gp.posterior",
    "gp.chunks",
    "gp.condition",
    "gp.sparse",
    "gp.state_space",
    "gp.evidence",
    "gp.feature_regression",
    "gp.summed",
    "gp.inducing",
]
install_import_hook([f"fedgauss.{module}" for module in CHECKED], "beartype.beartype")

settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")
