"""A model's hyper-parameters as one vector: their names, starts, floors, box and priors, and the change of variables.

Optimisers and servers see a vector; messages, files and people see named arrays. This file is the way between.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from fedgauss.errors import SettingsError, suggest
from fedgauss.gp.kernels import AnyArray, Kernel, Parameters, from_config, scale_parameters, to_config

Flat = dict[str, Any]
"""Arrays by dotted name, such as `rbf.lengthscale`."""

Transform = Literal["softplus", "log", "none"]

_FLOOR = 1e-6
"""Smallest lengthscale, variance and so on; the noise variance has a floor of its own."""


def flatten(parameters: Parameters) -> Flat:
    """Nested parameters by dotted name.

    Example:
        >>> flatten({"rbf": {"variance": 1.0}, "noise_variance": 0.1})
        {'rbf.variance': 1.0, 'noise_variance': 0.1}
    """
    flat: Flat = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def unflatten(flat: Flat) -> Parameters:
    """The nested parameters that `flatten` took apart."""
    nested: Parameters = {}
    for name, value in flat.items():
        *outer, last = name.split(".")
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogNormal:
    """A prior: the parameter's logarithm is normal.

    Args:
        mean: Of the logarithm.
        std: Of the logarithm.

    Example:
        >>> round(float(LogNormal(mean=0.0, std=1.0).log_density(jnp.ones(()))), 4)
        -0.9189
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        if not self.std > 0.0:
            raise SettingsError(f"LogNormal(std={self.std}): expected a positive standard deviation")

    def log_density(self, value: Float[Array, "..."]) -> Float[Array, "..."]:
        """log p(value), with the factor 1 / value."""
        z = (jnp.log(value) - self.mean) / self.std
        return jnp.asarray(-0.5 * z**2 - jnp.log(value) - np.log(self.std * np.sqrt(2 * np.pi)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Space:
    """Where a model's hyper-parameters live: the kernel's own and `noise_variance`.

    Names in `start`, `lower`, `upper` and `priors` are dotted names, or a last part (`lengthscale`) that stands for
    every parameter of that name.

    Args:
        kernel: Whose parameters.
        num_inputs: D.
        transform: theta = floor + softplus(u), theta = exp(u), or theta = u.
        noise_floor: The least noise variance.
        start: Values to start from, for the targets' unit scale; the kernel's own and 0.1 for the noise otherwise.
        lower: The box from below, beside the floors.
        upper: The box from above.
        priors: Log-normal priors.
        target_scale: The size of the targets where they are not standardised: the default starts, floors and ceilings
            of variances are relative to its square.

    Example:
        >>> from fedgauss.gp.kernels import RBF
        >>> space = Space(kernel=RBF(), num_inputs=2)
        >>> space.names
        ('lengthscale', 'variance', 'noise_variance')
        >>> bool(np.allclose(space.constrain(space.unconstrain(space.first())), space.first()))
        True
    """

    kernel: Kernel
    num_inputs: int
    transform: Transform = "softplus"
    noise_floor: float = 1e-4
    start: tuple[tuple[str, float], ...] = ()
    lower: tuple[tuple[str, float], ...] = ()
    upper: tuple[tuple[str, float], ...] = ()
    priors: tuple[tuple[str, LogNormal], ...] = ()
    target_scale: float = 1.0

    def __post_init__(self) -> None:
        for setting in ("start", "lower", "upper", "priors"):
            for name, value in getattr(self, setting):
                self.select((name,), setting)
                if setting != "priors" and not value > 0.0:
                    raise SettingsError(f"{setting}: {name}={value}, expected a positive number")
        first, low, high = self.first(), *self.box()
        for name, least, most in zip(self.element_names, low, high, strict=True):
            if least > most:
                raise SettingsError(f"upper: {name} is below its lower bound, or below its floor")
        for name, inside in zip(self.element_names, (first >= low) & (first <= high), strict=True):
            if not inside:
                raise SettingsError(f"start: {name} lies outside the box that lower, upper and the floors give it")

    @functools.cached_property
    def _leaves(self) -> dict[str, np.ndarray[Any, Any]]:
        return self._scaled(lambda leaf: leaf, max(0.1, self.noise_floor))

    def _scaled(self, value: Callable[[Any], Any], noise: float) -> dict[str, np.ndarray[Any, Any]]:
        """A value made of each starting value, for targets of the size that these have."""
        parameters = jax.tree.map(value, self.kernel.start(self.num_inputs)) | {"noise_variance": np.float64(noise)}
        scaled = scale_parameters(self.kernel, parameters, np.ones(self.num_inputs), self.target_scale)
        return {name: np.asarray(leaf) for name, leaf in flatten(scaled).items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The dotted names, in the vector's order."""
        return tuple(self._leaves)

    @functools.cached_property
    def _slices(self) -> dict[str, slice]:
        ends = np.cumsum([leaf.size for leaf in self._leaves.values()])
        return {n: slice(int(e - leaf.size), int(e)) for (n, leaf), e in zip(self._leaves.items(), ends, strict=True)}

    @functools.cached_property
    def element_names(self) -> tuple[str, ...]:
        """One name for each element of the vector."""
        return tuple(
            name if leaf.size == 1 else f"{name}[{i}]" for name, leaf in self._leaves.items() for i in range(leaf.size)
        )

    @property
    def size(self) -> int:
        """Length of the vector."""
        return len(self.element_names)

    def select(self, names: tuple[str, ...], setting: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which elements of the vector these names stand for.

        Raises:
            SettingsError: If a name stands for nothing.
        """
        chosen = np.zeros(sum(leaf.size for leaf in self._leaves.values()), dtype=bool)
        for name in names:
            found = [known for known in self.names if known == name or known.rsplit(".", 1)[-1] == name]
            if not found:
                raise SettingsError(
                    f"{setting}: the model has no parameter {name!r}{suggest(name, self.names)}."
                    f" It has {', '.join(self.names)}."
                )
            for known in found:
                chosen[self._slices[known]] = True
        return chosen

    def _fill(self, pairs: tuple[tuple[str, float], ...], vector: np.ndarray[Any, Any], setting: str) -> Any:
        for name, value in pairs:
            vector[self.select((name,), setting)] = value
        return vector

    def first(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The constrained vector to start from."""
        return np.asarray(self._fill(self.start, self._vector(self._leaves), "start"))

    def floors(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The least value of each element."""
        return self._vector(self._scaled(lambda leaf: np.full(leaf.shape, _FLOOR), self.noise_floor))

    def ceilings(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The largest values worth looking at, as far above the usual as the floors are below."""
        return self._vector(self._scaled(lambda leaf: np.full(leaf.shape, 1.0 / _FLOOR), 1.0 / _FLOOR))

    @staticmethod
    def _vector(leaves: Flat) -> np.ndarray[Any, np.dtype[np.float64]]:
        return np.concatenate([np.ravel(leaf) for leaf in leaves.values()])

    def box(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Lower and upper bounds of the constrained vector: the box Theta of FGPR's Assumption 1."""
        low = np.maximum(self._fill(self.lower, self.floors(), "lower"), self.floors())
        return low, self._fill(self.upper, np.full(self.size, np.inf), "upper")

    def constrain(self, u: Float[AnyArray, " K"]) -> Float[Array, " K"]:
        """theta from u."""
        match self.transform:
            case "softplus":
                return jnp.asarray(self.floors() + jax.nn.softplus(u))
            case "log":
                return jnp.exp(u)
            case "none":
                return jnp.asarray(u)

    def unconstrain(self, theta: Float[AnyArray, " K"]) -> Float[Array, " K"]:
        """u from theta; a value at its floor is moved up by a hair."""
        match self.transform:
            case "softplus":
                above = jnp.maximum(theta - self.floors(), 1e-12)
                return above + jnp.log(-jnp.expm1(-above))
            case "log":
                return jnp.log(theta)
            case "none":
                return jnp.asarray(theta)

    def project(self, u: Float[Array, " K"]) -> Float[Array, " K"]:
        """The nearest u whose theta lies in the box."""
        low, high = self.box()
        if self.transform == "softplus" and not self.lower and not self.upper:
            return u
        return jnp.clip(u, self.unconstrain(low), jnp.where(np.isinf(high), jnp.inf, self.unconstrain(high)))

    def unravel(self, theta: Float[Array, " K"]) -> Parameters:
        """Nested parameters from the constrained vector."""
        return unflatten(self.named(theta))

    def named(self, vector: Shaped[AnyArray, " K"]) -> Flat:
        """A vector's parts by dotted name."""
        return {name: vector[self._slices[name]].reshape(leaf.shape) for name, leaf in self._leaves.items()}

    def ravel(self, flat: Flat) -> Float[Array, " K"]:
        """The vector of arrays by dotted name."""
        return jnp.concatenate([jnp.ravel(flat[name]) for name in self.names])

    def log_prior(self, theta: Float[AnyArray, " K"]) -> Float[Array, " K"]:
        """Each element's log density under its priors, zero where it has none."""
        theta, total = jnp.asarray(theta), jnp.zeros(self.size)
        for name, prior in self.priors:
            total = total + jnp.where(self.select((name,), "priors"), prior.log_density(theta), 0.0)
        return total

    def to_config(self) -> dict[str, Any]:
        """The space as a dict of plain values, for JSON; `from_config` takes it back."""
        priors = [(name, prior.mean, prior.std) for name, prior in self.priors]
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {"kernel": to_config(self.kernel), "priors": priors}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Space":
        """The space that `to_config` wrote.

        Example:
            >>> from fedgauss.gp.kernels import RBF
            >>> space = Space(kernel=RBF(), num_inputs=2, priors=(("variance", LogNormal()),))
            >>> Space.from_config(space.to_config()) == space
            True
        """
        priors = tuple((name, LogNormal(mean=mean, std=std)) for name, mean, std in config["priors"])
        pairs = {name: tuple((key, value) for key, value in config[name]) for name in ("start", "lower", "upper")}
        return cls(**(dict(config) | pairs | {"kernel": from_config(config["kernel"]), "priors": priors}))
