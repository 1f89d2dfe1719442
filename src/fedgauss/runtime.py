"""The one place that touches JAX's global settings: 64 bits, and the number of host devices. The doors call it."""

import logging
import os
from typing import Any

logger = logging.getLogger("fedgauss")


def prepare() -> None:
    """Turn on 64 bits, and let JAX see one device a core if it has not started yet.

    Gaussian processes factorise nearly singular matrices: 32 bits are not enough. Called by every door (`fit`,
    `predict`, `load`); call it yourself before making JAX arrays of your own.

    Example:
        >>> prepare()
        >>> import jax.numpy as jnp
        >>> jnp.zeros(1).dtype
        dtype('float64')
    """
    import jax

    config: Any = jax.config
    config.update("jax_enable_x64", True)
    cores = num_cores()
    if config.jax_num_cpu_devices in (-1, cores):
        try:
            config.update("jax_num_cpu_devices", cores)
        except RuntimeError:
            logger.debug("JAX started before fedgauss: clients are computed on %d device(s)", jax.local_device_count())


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
