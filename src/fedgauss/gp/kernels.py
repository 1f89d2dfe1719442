"""Covariance functions as frozen settings, evaluated on plain dicts of parameters: the one door to GPJax.

A kernel holds choices (which columns, one lengthscale or several); what is learned lives in a dict beside it, so that
parameters can be averaged, sent, saved and put in the user's own units without knowing which kernel they belong to.

Stationary kernels have a path of their own with an analytic gradient, `distances.stationary`.
"""

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedgauss.errors import SettingsError, suggest
from fedgauss.gp.distances import stationary

Parameters: TypeAlias = dict[str, Any]
"""Constrained values by name: arrays, or dicts of arrays for the parts of a sum or product."""

AnyArray: TypeAlias = Array | np.ndarray


class Kernel(ABC):
    """A covariance function without its parameters. Add and multiply kernels with `+` and `*`.

    Example:
        >>> kernel = RBF(ard=True) * Linear() + Periodic()
        >>> kernel.name
        'rbf*linear+periodic'
        >>> sorted(kernel.start(num_inputs=2)["rbf*linear"]["rbf"])
        ['lengthscale', 'variance']
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The kernel in words, such as "rbf" or "rbf*linear"."""

    def start(self, num_inputs: int) -> Parameters:
        """Starting values for inputs and targets of unit scale.

        Args:
            num_inputs: D, the number of input columns.

        Returns:
            A nested dict of float64 arrays. In a product only the first factor has a scale of its own, since the data
            cannot tell the scales of two factors apart.

        Raises:
            SettingsError: If the kernel uses columns that do not exist.
        """
        check_active(self, num_inputs)
        return self._start(num_inputs, unit=False)

    def gram(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, "N N"]:
        """The covariance of f at `X` with itself."""
        X = jnp.asarray(X)
        return self._covariance(parameters, X, X, same=True)

    def cross_covariance(
        self, parameters: Parameters, X: Float[AnyArray, "N D"], Z: Float[AnyArray, "M D"]
    ) -> Float[Array, "N M"]:
        """The covariance of f at `X` with f at `Z`."""
        return self._covariance(parameters, jnp.asarray(X), jnp.asarray(Z), same=False)

    @abstractmethod
    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """The variance of f at each row of `X`: the diagonal of `gram`."""

    @abstractmethod
    def to_gpjax(self, parameters: Parameters) -> Any:
        """The same covariance function as a GPJax kernel holding these values as they are (no bijection)."""

    @abstractmethod
    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        """Starting values; with `unit`, without the parameter that only scales the whole kernel."""

    @abstractmethod
    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        """The covariance; `same` says that `X` and `Z` are one array."""

    @abstractmethod
    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        """`parameters` in the user's units, the kernel's values multiplied by `output`."""

    @abstractmethod
    def _leaves(self) -> Iterator["_Leaf"]:
        """The kernels this one is built of."""

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum((self, other)) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: "Kernel") -> "Product":
        return Product((self, other)) if isinstance(other, Kernel) else NotImplemented


# Single kernels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Leaf(Kernel):
    """A kernel that is not a sum or product."""

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """See `Kernel.name`."""
        return self.kind

    @property
    def _active(self) -> tuple[int, ...] | None:
        active: tuple[int, ...] | None = getattr(self, "active")  # noqa: B009  declared by the final classes
        return active

    def _columns(self, X: Float[Array, "N D"]) -> Float[Array, "N A"]:
        return X if self._active is None else X[:, np.asarray(self._active)]

    def _active_scale(self, input_scale: Float[np.ndarray, " D"]) -> Float[np.ndarray, " A"]:
        """The scales of the active columns; a single one when they are all equal."""
        scale = input_scale if self._active is None else input_scale[list(self._active)]
        return scale[:1] if np.all(scale == scale[0]) else scale

    def _gpjax_active(self) -> list[int] | None:
        return None if self._active is None else list(self._active)

    def _leaves(self) -> Iterator["_Leaf"]:
        yield self


def _gpjax() -> Any:
    try:
        import gpjax
    except ImportError:
        raise SettingsError('to_gpjax needs GPJax; pip install "fedgauss[gpjax]"') from None
    return gpjax


def _real(value: Any) -> Any:
    value = jnp.asarray(value)  # GPJax refuses a lengthscale of one for several columns unless it is a scalar
    return _gpjax().parameters.Real(value[0] if value.shape == (1,) else value)


def _variance(parameters: Parameters) -> Any:
    """The variance, one for a later factor of a product."""
    return jnp.asarray(parameters.get("variance", np.float64(1.0)))


@dataclass(frozen=True)
class _Stationary(_Leaf):
    """k(x, z) = variance * profile(r2), r2 = sum_d (x_d - z_d)^2 / lengthscale_d^2."""

    _is_steep: ClassVar[bool] = False
    """Whether the profile's slope has no bound near 0: sums over it must not cancel."""

    ard: bool = False
    active: tuple[int, ...] | None = None

    @staticmethod
    @abstractmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        """The covariance for unit variance and its derivative with respect to `r2`; both finite at 0."""

    def _shape(self, parameters: Parameters) -> tuple[Float[Array, ""], ...]:
        """What the profile depends on besides the distance."""
        return ()

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        width = num_inputs if self.active is None else len(self.active)
        lengthscale = {"lengthscale": np.ones(width if self.ard else 1)}
        return lengthscale if unit else lengthscale | {"variance": np.ones(())}

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        X = self._columns(X)
        Z = X if same else self._columns(Z)
        lengthscale = jnp.asarray(parameters["lengthscale"])
        shape = self._shape(parameters)
        return stationary(self._profile, self._is_steep, same, X, Z, lengthscale, _variance(parameters), shape)

    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """See `Kernel.diagonal`."""
        return jnp.broadcast_to(_variance(parameters), X.shape[:1])

    def to_gpjax(self, parameters: Parameters) -> Any:
        """See `Kernel.to_gpjax`."""
        names = {
            "rbf": "RBF",
            "matern12": "Matern12",
            "matern32": "Matern32",
            "matern52": "Matern52",
            "rq": "RationalQuadratic",
            "periodic": "Periodic",
        }
        values = {"variance": np.ones(())} | parameters
        return getattr(_gpjax().kernels, names[self.kind])(
            active_dims=self._gpjax_active(), **{name: _real(value) for name, value in values.items()}
        )

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        scaled = parameters | {"lengthscale": np.asarray(parameters["lengthscale"]) * self._active_scale(input_scale)}
        return _scale_variance(scaled, output)


def _scale_variance(parameters: Parameters, output: float) -> Parameters:
    if "variance" not in parameters:
        return parameters
    return parameters | {"variance": np.asarray(parameters["variance"]) * output}


@dataclass(frozen=True)
class RBF(_Stationary):
    """variance * exp(-r2 / 2), with r2 the squared distance in lengthscales.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.

    Example:
        >>> RBF(ard=True).start(num_inputs=3)["lengthscale"]
        array([1., 1., 1.])
    """

    kind: ClassVar[str] = "rbf"

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        k = jnp.exp(-0.5 * r2)
        return k, -0.5 * k


def _distance(r2: Float[Array, "N M"]) -> Float[Array, "N M"]:
    """sqrt(r2) with derivative 0, not infinity, at 0."""
    apart = r2 > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, r2, 1.0)), 0.0)


@dataclass(frozen=True)
class Matern12(_Stationary):
    """variance * exp(-r): continuous, nowhere differentiable functions.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "matern12"
    _is_steep: ClassVar[bool] = True

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        r = _distance(r2)
        k = jnp.exp(-r)
        # The slope in r2 is infinite at 0; what it is multiplied by there, the derivative of r2, is 0.
        return k, jnp.where(r > 0, -0.5 * k / jnp.where(r > 0, r, 1.0), 0.0)


@dataclass(frozen=True)
class Matern32(_Stationary):
    """variance * (1 + sqrt(3) r) exp(-sqrt(3) r): once differentiable functions.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "matern32"

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        s = _distance(3.0 * r2)
        decay = jnp.exp(-s)
        return (1.0 + s) * decay, -1.5 * decay


@dataclass(frozen=True)
class Matern52(_Stationary):
    """variance * (1 + sqrt(5) r + 5 r2 / 3) exp(-sqrt(5) r): twice differentiable functions.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "matern52"

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        s = _distance(5.0 * r2)
        decay = jnp.exp(-s)
        return (1.0 + s + (5.0 / 3.0) * r2) * decay, (-5.0 / 6.0) * (1.0 + s) * decay


@dataclass(frozen=True)
class RationalQuadratic(_Stationary):
    """variance * (1 + r2 / (2 alpha))^-alpha: a mixture of RBF kernels of many lengthscales; alpha to infinity is RBF.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "rq"

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        (alpha,) = shape
        growth = r2 / (2.0 * alpha)
        k = jnp.exp(-alpha * jnp.log1p(growth))
        return k, -0.5 * k / (1.0 + growth)

    def _shape(self, parameters: Parameters) -> tuple[Float[Array, ""], ...]:
        return (jnp.asarray(parameters["alpha"]),)

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        return super()._start(num_inputs, unit=unit) | {"alpha": np.ones(())}


@dataclass(frozen=True)
class Periodic(_Stationary):
    """variance * exp(-sum_d (sin(pi (x_d - z_d) / period) / lengthscale_d)^2 / 2).

    Its lengthscale has no unit: it says how much f may vary within one period.

    Args:
        ard: One lengthscale for each active column instead of one for all.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "periodic"

    @staticmethod
    def _profile(r2: Float[Array, "N M"], *shape: Float[Array, ""]) -> tuple[Float[Array, "N M"], Float[Array, "N M"]]:
        return RBF._profile(r2)

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        return super()._start(num_inputs, unit=unit) | {"period": np.ones(())}

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        # On a circle of radius 1/2 the chord between the angles 2 pi x / p and 2 pi z / p is |sin(pi (x - z) / p)|:
        # an RBF kernel of N D sines and cosines, not N^2 D sines.
        period = jnp.asarray(parameters["period"])
        X = _circle(self._columns(X), period)
        Z = X if same else _circle(self._columns(Z), period)
        lengthscale = jnp.asarray(parameters["lengthscale"])
        if lengthscale.shape != (1,):
            lengthscale = jnp.concatenate([lengthscale, lengthscale])
        return stationary(self._profile, self._is_steep, same, X, Z, lengthscale, _variance(parameters), ())

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        scale = self._active_scale(input_scale)
        period = np.asarray(parameters["period"]) * (scale[0] if scale.shape == (1,) else scale)
        return _scale_variance(parameters | {"period": period}, output)


def _circle(X: Float[Array, "N D"], period: Float[Array, "..."]) -> Float[Array, "N E"]:
    angle = (2.0 * np.pi) * X / (period if period.ndim == 0 else period[None, :])
    return 0.5 * jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1)


@dataclass(frozen=True)
class Linear(_Leaf):
    """variance * x . z: straight planes through the origin, which after standardising is the mean of the inputs.

    Args:
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "linear"
    active: tuple[int, ...] | None = None

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        return {} if unit else {"variance": np.ones(())}

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        return _dot(self._columns(X), self._columns(Z), _variance(parameters))

    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """See `Kernel.diagonal`."""
        return _squared_norms(self._columns(jnp.asarray(X)), _variance(parameters))

    def to_gpjax(self, parameters: Parameters) -> Any:
        """See `Kernel.to_gpjax`."""
        return _gpjax().kernels.Linear(active_dims=self._gpjax_active(), variance=_real(_variance(parameters)))

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        return _scale_weights(parameters, self._active_scale(input_scale), output)


@dataclass(frozen=True)
class Polynomial(_Leaf):
    """(shift + variance * x . z)^degree: polynomials up to that degree.

    Args:
        degree: At least 1.
        active: The input columns it looks at, counted from 0; all by default.
    """

    kind: ClassVar[str] = "polynomial"
    degree: int = 2
    active: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise SettingsError(f"kernel polynomial: degree is {self.degree}, expected a whole number from 1.")

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        return {"shift": np.ones(())} | ({} if unit else {"variance": np.ones(())})

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        dot = _dot(self._columns(X), self._columns(Z), _variance(parameters))
        return (jnp.asarray(parameters["shift"]) + dot) ** self.degree

    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """See `Kernel.diagonal`."""
        norms = _squared_norms(self._columns(jnp.asarray(X)), _variance(parameters))
        return (jnp.asarray(parameters["shift"]) + norms) ** self.degree

    def to_gpjax(self, parameters: Parameters) -> Any:
        """See `Kernel.to_gpjax`."""
        return _gpjax().kernels.Polynomial(
            active_dims=self._gpjax_active(),
            degree=self.degree,
            shift=_real(parameters["shift"]),
            variance=_real(_variance(parameters)),
        )

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        inside = output ** (1.0 / self.degree)  # output * (a + b)^degree = (inside * a + inside * b)^degree
        shifted = parameters | {"shift": np.asarray(parameters["shift"]) * inside}
        return _scale_weights(shifted, self._active_scale(input_scale), inside)


def _dot(X: Float[Array, "N D"], Z: Float[Array, "M D"], variance: Float[Array, "..."]) -> Float[Array, "N M"]:
    return (X * variance) @ Z.T if variance.ndim == 0 else (X * variance[None, :]) @ Z.T


def _squared_norms(X: Float[Array, "N D"], variance: Float[Array, "..."]) -> Float[Array, " N"]:
    return jnp.sum(X * X * (variance if variance.ndim == 0 else variance[None, :]), axis=1)


def _scale_weights(parameters: Parameters, scale: Float[np.ndarray, " A"], output: float) -> Parameters:
    """`variance` / scale^2, which a later factor of a product gains unless it stays one."""
    variance = np.asarray(parameters.get("variance", 1.0)) * output / (scale[0] if scale.shape == (1,) else scale) ** 2
    return (
        parameters if "variance" not in parameters and np.all(variance == 1.0) else parameters | {"variance": variance}
    )


# Sums and products -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum(Kernel):
    """The sum of kernels: f is a sum of independent functions. Sums within sums are flattened.

    Args:
        terms: The kernels to add. `a + b` is the shorter way.
    """

    terms: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", _flatten("sum", self.terms))

    @property
    def name(self) -> str:
        """See `Kernel.name`."""
        return "+".join(term.name for term in self.terms)

    def _parts(self, parameters: Parameters) -> list[tuple[Kernel, Parameters]]:
        return [(term, parameters.get(key, {})) for key, term in _keyed(self.terms)]

    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """See `Kernel.diagonal`."""
        return _add(term.diagonal(part, X) for term, part in self._parts(parameters))

    def to_gpjax(self, parameters: Parameters) -> Any:
        """See `Kernel.to_gpjax`."""
        return _gpjax().kernels.SumKernel([term.to_gpjax(part) for term, part in self._parts(parameters)])

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        # The scale of the whole is the first term's; the others keep theirs, relative to it.
        return {key: term._start(num_inputs, unit=unit and i == 0) for i, (key, term) in enumerate(_keyed(self.terms))}

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        return _add(term._covariance(part, X, Z, same=same) for term, part in self._parts(parameters))

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        return {key: term._scale(parameters.get(key, {}), input_scale, output) for key, term in _keyed(self.terms)}

    def _leaves(self) -> Iterator[_Leaf]:
        for term in self.terms:
            yield from term._leaves()


@dataclass(frozen=True)
class Product(Kernel):
    """The product of kernels. Products within products are flattened; only the first factor has a scale of its own.

    Args:
        factors: The kernels to multiply. `a * b` is the shorter way.
    """

    factors: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", _flatten("product", self.factors))

    @property
    def name(self) -> str:
        """See `Kernel.name`."""
        return "*".join(f"({part.name})" if isinstance(part, Sum) else part.name for part in self.factors)

    def _parts(self, parameters: Parameters) -> list[tuple[Kernel, Parameters]]:
        return [(factor, parameters.get(key, {})) for key, factor in _keyed(self.factors)]

    def diagonal(self, parameters: Parameters, X: Float[AnyArray, "N D"]) -> Float[Array, " N"]:
        """See `Kernel.diagonal`."""
        return _multiply(factor.diagonal(part, X) for factor, part in self._parts(parameters))

    def to_gpjax(self, parameters: Parameters) -> Any:
        """See `Kernel.to_gpjax`."""
        return _gpjax().kernels.ProductKernel([factor.to_gpjax(part) for factor, part in self._parts(parameters)])

    def _start(self, num_inputs: int, *, unit: bool) -> Parameters:
        return {
            key: factor._start(num_inputs, unit=unit or i > 0) for i, (key, factor) in enumerate(_keyed(self.factors))
        }

    def _covariance(
        self, parameters: Parameters, X: Float[Array, "N D"], Z: Float[Array, "M D"], *, same: bool
    ) -> Float[Array, "N M"]:
        return _multiply(factor._covariance(part, X, Z, same=same) for factor, part in self._parts(parameters))

    def _scale(self, parameters: Parameters, input_scale: Float[np.ndarray, " D"], output: float) -> Parameters:
        return {
            key: factor._scale(parameters.get(key, {}), input_scale, output if i == 0 else 1.0)
            for i, (key, factor) in enumerate(_keyed(self.factors))
        }

    def _leaves(self) -> Iterator[_Leaf]:
        for factor in self.factors:
            yield from factor._leaves()


def _add(arrays: Iterator[Float[Array, "..."]]) -> Float[Array, "..."]:
    return functools.reduce(operator.add, arrays)


def _multiply(arrays: Iterator[Float[Array, "..."]]) -> Float[Array, "..."]:
    return functools.reduce(operator.mul, arrays)


def _flatten(kind: str, parts: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    flat: list[Kernel] = []
    for part in parts:
        if kind == "sum" and isinstance(part, Sum):
            flat.extend(part.terms)
        elif kind == "product" and isinstance(part, Product):
            flat.extend(part.factors)
        else:
            flat.append(part)
    if len(flat) < 2:
        raise SettingsError(f"kernel {kind}: got {len(flat)} kernels, expected two or more.")
    return tuple(flat)


def _keyed(parts: tuple[Kernel, ...]) -> list[tuple[str, Kernel]]:
    """Each part with its key in the parameters: its name, then name_2, name_3 when it comes again."""
    seen: dict[str, int] = {}
    keyed = []
    for part in parts:
        seen[part.name] = seen.get(part.name, 0) + 1
        keyed.append((part.name if seen[part.name] == 1 else f"{part.name}_{seen[part.name]}", part))
    return keyed


# Names, settings and units -----------------------------------------------------------------------------------------

_KINDS: Mapping[str, type[_Leaf]] = {
    kernel.kind: kernel
    for kernel in (RBF, Matern12, Matern32, Matern52, Periodic, RationalQuadratic, Linear, Polynomial)
}


def resolve(kernel: str | Kernel) -> Kernel:
    """The kernel of this name; a kernel is returned as it is.

    Args:
        kernel: "rbf", "matern12", "matern32", "matern52", "periodic", "rq", "linear", "polynomial", or a kernel.

    Returns:
        A kernel, with its default settings when it came by name.

    Raises:
        SettingsError: If there is no such kernel; suggests the nearest name.

    Example:
        >>> resolve("matern32")
        Matern32(ard=False, active=None)
    """
    if isinstance(kernel, Kernel):
        return kernel
    if kernel not in _KINDS:
        raise SettingsError(f'kernel: unknown name "{kernel}"{suggest(kernel, _KINDS)}. Known: {", ".join(_KINDS)}.')
    return _KINDS[kernel]()


def to_config(kernel: Kernel) -> dict[str, Any]:
    """The kernel as a dict of plain values, for JSON and TOML.

    Example:
        >>> to_config(RBF(active=(0,)) + Linear())["terms"][0]
        {'name': 'rbf', 'ard': False, 'active': [0]}
    """
    if isinstance(kernel, Sum):
        return {"name": "sum", "terms": [to_config(term) for term in kernel.terms]}
    if isinstance(kernel, Product):
        return {"name": "product", "factors": [to_config(factor) for factor in kernel.factors]}
    assert isinstance(kernel, _Leaf)  # the only other kind there is
    values = {field.name: getattr(kernel, field.name) for field in fields(kernel)}
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return {"name": kernel.kind} | {key: value for key, value in plain.items() if value is not None}


def from_config(config: Mapping[str, Any]) -> Kernel:
    """The kernel that `to_config` wrote.

    Args:
        config: `name` and the kernel's settings; `terms` for a sum, `factors` for a product.

    Returns:
        The kernel.

    Raises:
        SettingsError: If a name, key or value is not what a kernel has; names the key.

    Example:
        >>> from_config({"name": "rbf", "ard": True})
        RBF(ard=True, active=None)
    """
    settings = dict(config)
    name = settings.pop("name", None)
    if name in ("sum", "product"):
        key = "terms" if name == "sum" else "factors"
        _check_keys(f"kernel {name}", settings, [key])
        parts = tuple(from_config(part) for part in settings.get(key, ()))
        return Sum(parts) if name == "sum" else Product(parts)
    if name not in _KINDS:
        known = [*_KINDS, "sum", "product"]
        raise SettingsError(f'kernel: unknown name "{name}"{suggest(str(name), known)}. Known: {", ".join(known)}.')
    kind = _KINDS[name]
    _check_keys(f"kernel {name}", settings, [field.name for field in fields(kind)])
    if settings.get("active") is not None:
        settings["active"] = tuple(settings["active"])
    return kind(**settings)


def _check_keys(owner: str, settings: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in settings:
        if key not in known:
            raise SettingsError(f'{owner}: unknown key "{key}"{suggest(key, known)}. Known: {", ".join(known)}.')


def check_active(kernel: Kernel, num_inputs: int) -> None:
    """Refuse a kernel that looks at columns which do not exist.

    Args:
        kernel: Any kernel.
        num_inputs: D, the number of input columns.

    Raises:
        SettingsError: Names the kernel and the column.

    Example:
        >>> check_active(RBF(active=(0, 1)), num_inputs=2)
    """
    for leaf in kernel._leaves():
        active = leaf._active
        if active is None:
            continue
        if not active or len(set(active)) != len(active):
            raise SettingsError(f"kernel {leaf.name}: active={list(active)}, expected one or more different columns.")
        for column in active:
            if not 0 <= column < num_inputs:
                raise SettingsError(
                    f"kernel {leaf.name}: active column {column} does not exist; the data has {num_inputs} input "
                    f"columns, counted from 0."
                )


def scale_parameters(
    kernel: Kernel,
    parameters: Parameters,
    input_scale: Float[AnyArray, " D"],
    target_scale: float,
) -> Parameters:
    """Parameters in the user's units, learned on inputs divided by `input_scale` and targets by `target_scale`.

    The kernel with the result, at the user's inputs, equals the kernel with `parameters` at the divided inputs times
    target_scale^2. Lengthscales and periods are multiplied by the scales of their columns (one for each column when
    these differ), variances by target_scale^2. A linear variance is also divided by the scales squared. Of a polynomial
    of degree p, `shift` and `variance` are multiplied by target_scale^(2/p), `variance` divided by the scales squared.
    Linear and polynomial kernels look at the inputs after centring, in any unit.

    Args:
        kernel: The kernel they belong to.
        parameters: Of the kernel, with or without `noise_variance`.
        input_scale: What each input column was divided by.
        target_scale: What the targets were divided by.

    Returns:
        A new dict of NumPy arrays. A linear or polynomial later factor of a product, which has no variance of its own,
        gains one when its columns were scaled.

    Example:
        >>> scaled = scale_parameters(RBF(), RBF().start(1), np.array([10.0]), 3.0)
        >>> scaled["lengthscale"], scaled["variance"]
        (array([10.]), np.float64(9.0))
    """
    input_scale = np.asarray(input_scale, dtype=np.float64)
    output = float(target_scale) ** 2
    noise = {}
    if "noise_variance" in parameters:
        parameters = dict(parameters)
        noise = {"noise_variance": np.asarray(parameters.pop("noise_variance")) * output}
    return kernel._scale(parameters, input_scale, output) | noise
