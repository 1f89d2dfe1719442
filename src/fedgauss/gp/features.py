r"""The unifying random kernel: k(x, x') = E_omega[g(omega, x)^T g(omega, x')], from m draws of omega.

Yu et al., "Federated Bayesian Neural Regression", section 4.1. The features of an input are the m vectors
g(omega_j, x), j = 1..m, one after the other and divided by sqrt(m); their inner products are the kernel's estimate.

The paper divides by sqrt(m) in equation 14 and by sqrt(m - 1) in equation 17. Only m makes the estimate unbiased, as
the proof of Theorem 2 needs it: E[1/m sum_j g(omega_j, x)^T g(omega_j, x')] = k(x, x'). Dividing by m - 1 would be
right for a covariance about an estimated mean, which this is not, and forbids m = 1. The difference is a factor that
the prior's scale takes up.

A feature is an Equinox module: its floating arrays are what is learned, all else is fixed. `Fourier` is the stationary
kernels, `Network` the paper's deep ones (Figs. A.1 and A.2); any function `(key, num_inputs) -> RandomFeature` may
stand in their place.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from fedgauss.errors import DataError, SettingsError
from fedgauss.settings import check_choice, check_positive, settings

Flat = dict[str, Any]
Family = Literal["rbf", "matern12", "matern32", "matern52"]
Activation = Literal["tanh", "relu", "silu"]

_FAMILIES = ("rbf", "matern12", "matern32", "matern52")
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}


class RandomFeature(eqx.Module):
    """g(omega, x): d features of one input for one draw of omega. Derive from it to make a kernel of your own."""

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "m W"]:
        """m draws of omega."""

    @abc.abstractmethod
    def __call__(self, omega: Float[Array, " W"], x: Float[Array, " D"]) -> Float[Array, " d"]:
        """g(omega, x)."""

    def batch(
        self, omega: Float[Array, "m W"], X: Float[Array, "N D"], weight: Float[Array, " N"]
    ) -> Float[Array, "d m N"]:
        """g of all draws and rows, times a weight a row. What does not depend on omega is computed once a row.

        A class may have a quicker way, rows last: products of matrices in this layout need no transposing on CPU.
        """
        draws = jax.vmap(self, in_axes=(0, None), out_axes=-1)  # [d, m] of one row
        return jnp.asarray(jax.vmap(draws, in_axes=(None, 0), out_axes=-1)(omega, X) * weight[None, None, :])


Features: TypeAlias = Callable[[PRNGKeyArray, int], RandomFeature]
"""From a key and the number of inputs to the features at their start. Hashable: a settings object, or a function."""


def feature_matrix(feature: RandomFeature, omega: Float[Array, "m W"], X: Float[Array, "N D"]) -> Float[Array, "N R"]:
    """The R = m d features of every row of `X`. Their inner products estimate the kernel, without bias.

    Example:
        >>> feature = Fourier()(jax.random.key(0), 2)
        >>> omega = feature.draw(jax.random.key(1), 50)
        >>> feature_matrix(feature, omega, jnp.zeros((3, 2))).shape
        (3, 100)
    """
    return feature_rows(feature, omega, X, jnp.ones(X.shape[0])).T


def feature_rows(
    feature: RandomFeature, omega: Float[Array, "m W"], X: Float[Array, "N D"], mask: Float[Array, " N"]
) -> Float[Array, "R N"]:
    """`feature_matrix` transposed: a row a feature, which is how it is computed; zeros where the mask is 0."""
    values = feature.batch(omega, X, mask / np.sqrt(omega.shape[0]))
    return values.reshape(values.shape[0] * values.shape[1], X.shape[0])


class Rest(NamedTuple):
    """A module without what is learned."""

    names: tuple[str, ...]
    """Of what is learned, in the structure's order."""
    structure: Any
    module: Any


def split(feature: RandomFeature) -> tuple[Flat, Rest]:
    """What is learned of a module, its floating arrays by dotted name, and all the rest; `join` puts them together.

    Example:
        >>> parameters, _ = split(Fourier(ard=True)(jax.random.key(0), 2))
        >>> {name: leaf.shape for name, leaf in parameters.items()}
        {'log_lengthscale': (2,)}
    """
    learned, rest = eqx.partition(feature, _is_learned)
    paths, structure = jax.tree_util.tree_flatten_with_path(learned)
    named = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
    return named, Rest(tuple(named), structure, rest)


def join(parameters: Flat, rest: Rest) -> RandomFeature:
    """The module of these parameters."""
    leaves = [parameters[name] for name in rest.names]
    whole: RandomFeature = eqx.combine(jax.tree.unflatten(rest.structure, leaves), rest.module)
    return whole


def _is_learned(leaf: Any) -> bool:
    """Floating arrays, or their shapes where a module is made in the abstract."""
    return isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@functools.lru_cache(maxsize=64)
def skeleton(make: Features, num_inputs: int) -> Rest:
    """A module without what is learned: all that is known without a key.

    Raises:
        SettingsError: If what `make` gives is not a `RandomFeature`, or holds other arrays than floating ones.
    """
    try:
        made = eqx.filter_eval_shape(make, jax.random.key(0), num_inputs)
    except TypeError as error:
        raise SettingsError(f"features: could not be made: {error}") from error
    if not isinstance(made, RandomFeature):
        raise SettingsError(f"features: got {type(made).__name__}, expected a fg.features.RandomFeature")
    _, rest = split(made)
    if any(isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(rest.module)):
        raise SettingsError("features: a module may hold floating arrays, which are learned, and no other arrays")
    return rest


def rebuild(make: Features, num_inputs: int, parameters: Flat) -> RandomFeature:
    """The module of these parameters, made by `make`."""
    return join(parameters, skeleton(make, num_inputs))


def to_config(make: Features) -> dict[str, Any]:
    """Settings of features as plain values; of a function of the user's, its name."""
    if isinstance(make, Fourier | Network):
        fields = {field.name: getattr(make, field.name) for field in dataclasses.fields(make)}
        return {"name": type(make).__name__.lower()} | fields
    return {"name": "custom", "function": getattr(make, "__qualname__", type(make).__qualname__)}


def from_config(config: dict[str, Any], custom: Features | None = None) -> Features:
    """The features that `to_config` described.

    Raises:
        DataError: If they were made by a function of the user's, and `custom` is missing.

    Example:
        >>> from_config(to_config(Network(widths=(20,)))) == Network(widths=(20,))
        True
    """
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in config.items()}
    match fields.pop("name"):
        case "fourier":
            return Fourier(**fields)
        case "network":
            return Network(**fields)
    if custom is None:
        raise DataError(
            f"the model's features were made by {config['function']!r}, which is not saved; pass it:"
            " fg.load(folder, features=...)"
        )
    return custom


# --- frequencies ---------------------------------------------------------------------------------------------------


def draw_frequencies(family: Family, key: PRNGKeyArray, num_samples: int, num_inputs: int) -> Float[Array, "m D"]:
    """Frequencies whose cosines average to a stationary kernel of unit lengthscale (Bochner; paper, Theorem 2).

    Normal for the RBF kernel. The spectral density of a Matern kernel of smoothness nu is a Student t of 2 nu degrees
    of freedom: a normal vector over the root of one chi-square, shared by its coordinates, over 2 nu.
    """
    key_normal, key_square = jax.random.split(key)
    normal = jax.random.normal(key_normal, (num_samples, num_inputs))
    if family == "rbf":
        return normal
    freedom = {"matern12": 1.0, "matern32": 3.0, "matern52": 5.0}[family]
    square = 2.0 * jax.random.gamma(key_square, 0.5 * freedom, (num_samples, 1))
    return normal / jnp.sqrt(square / freedom)


_PI_2 = (1.57079632673412561417, 6.07710050630396597660e-11, 2.02226624871116645580e-21)
"""pi / 2 in three parts: multiples up to 2^20 of the first two are exact."""
_SIN = (-1 / 6, 8.33333333332248946e-3, -1.98412698298579493e-4, 2.75573137070700677e-6, -2.50507602534068634e-8,
        1.58969099521155010e-10)  # fmt: skip
_COS = (4.16666666666666019e-2, -1.38888888888741096e-3, 2.48015872894767294e-5, -2.75573143513906633e-7,
        2.08757232129817483e-9, -1.13596475577881948e-11)  # fmt: skip


@jax.custom_jvp
def sine_cosine(angle: Float[Array, "*"]) -> tuple[Float[Array, "*"], Float[Array, "*"]]:
    """sin and cos of an angle, to rounding for angles below a million.

    XLA 0.10 calls the scalar functions of the C library for 64-bit sine and cosine: 23 ns a pair on one core, most of
    the time of a network's features. These are the same polynomials (Cody and Waite's reduction, Sun's coefficients) in
    arithmetic that vectorises: 1.3 ns a pair.

    Example:
        >>> [round(float(part), 12) for part in sine_cosine(jnp.array(2.0))]
        [0.909297426826, -0.416146836547]
    """
    turns = jnp.round(angle * (2 / np.pi))
    rest = angle
    for part in _PI_2:
        rest = rest - turns * part
    rest = jnp.clip(rest, -1.0, 1.0)  # beyond a million turns nothing is left but rounding
    square = rest * rest
    sine, cosine = jnp.asarray(_SIN[-1]), jnp.asarray(_COS[-1])
    for a, b in zip(_SIN[-2::-1], _COS[-2::-1], strict=True):
        sine, cosine = sine * square + a, cosine * square + b
    sine = rest + rest * square * sine
    cosine = 1.0 - 0.5 * square + square * square * cosine
    quarter = turns - 4.0 * jnp.floor(0.25 * turns)
    is_odd = (quarter == 1.0) | (quarter == 3.0)
    sine, cosine = jnp.where(is_odd, cosine, sine), jnp.where(is_odd, sine, cosine)
    is_second_or_third = (quarter == 1.0) | (quarter == 2.0)
    return jnp.where(quarter >= 2.0, -sine, sine), jnp.where(is_second_or_third, -cosine, cosine)


@sine_cosine.defjvp
def _sine_cosine_jvp(primals: Any, tangents: Any) -> Any:
    sine, cosine = sine_cosine(*primals)
    (change,) = tangents
    return (sine, cosine), (cosine * change, -sine * change)


def _fourier(frequency: Float[Array, " D"], x: Float[Array, " D"]) -> Float[Array, "2"]:
    """[cos(omega^T x), sin(omega^T x)]: equation 15."""
    sine, cosine = sine_cosine(frequency @ x)
    return jnp.stack([cosine, sine])


def _fourier_batch(
    frequencies: Float[Array, "m D"], inputs: Float[Array, "D N"], weight: Float[Array, " N"]
) -> Float[Array, "2 m N"]:
    """`_fourier` of all draws and rows, times a weight a row."""
    m = frequencies.shape[0]
    sine, cosine = sine_cosine(_product(frequencies, inputs))
    # written into place: of stacked parts XLA computes sine and cosine anew wherever they are read
    rows = jnp.zeros((2 * m, inputs.shape[1]))
    rows = rows.at[:m].set(cosine * weight[None, :]).at[m:].set(sine * weight[None, :])
    return rows.reshape(2, m, inputs.shape[1])


def _barrier(array: Float[Array, "..."]) -> Float[Array, "..."]:
    """The array, made before it is used."""
    made: Array = jax.lax.optimization_barrier(array)  # type: ignore[no-untyped-call]
    return made


@jax.custom_vjp
def _product(left: Float[Array, "A B"], right: Float[Array, "B N"]) -> Float[Array, "A N"]:
    """left @ right, with a gradient that stays rows last: XLA would transpose the long matrix on the way back."""
    return left @ right


def _product_backward(kept: Any, change: Float[Array, "A N"]) -> Any:
    left, right = kept
    return change @ right.T, _barrier(left.T) @ change


_product.defvjp(lambda left, right: (left @ right, (left, right)), _product_backward)


# --- stationary kernels --------------------------------------------------------------------------------------------


class FourierFeature(RandomFeature):
    """Random Fourier features of a stationary kernel; its lengthscales are learned.

    Frequencies are drawn for a unit lengthscale and stay as drawn, so the features are smooth functions of the
    lengthscales.
    """

    log_lengthscale: Float[Array, " L"]
    family: Family = eqx.field(static=True)
    num_inputs: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "m D"]:
        """Frequencies for a unit lengthscale."""
        return draw_frequencies(self.family, key, num_samples, self.num_inputs)

    def __call__(self, omega: Float[Array, " D"], x: Float[Array, " D"]) -> Float[Array, "2"]:
        """cos and sin of omega^T x / lengthscale."""
        return _fourier(omega, x * jnp.exp(-self.log_lengthscale))

    def batch(
        self, omega: Float[Array, "m D"], X: Float[Array, "N D"], weight: Float[Array, " N"]
    ) -> Float[Array, "2 m N"]:
        """The same by products of matrices."""
        return _fourier_batch(omega, (X * jnp.exp(-self.log_lengthscale)[None, :]).T, weight)


@settings
class Fourier:
    """A stationary kernel by random Fourier features.

    Args:
        family: "rbf", "matern12", "matern32" or "matern52".
        ard: Whether each input has a lengthscale of its own.

    Example:
        >>> Fourier(family="matern32")(jax.random.key(0), 3).log_lengthscale
        Array([0.54930614], dtype=float64)
    """

    family: Family = "rbf"
    ard: bool = False

    def __post_init__(self) -> None:
        check_choice("Fourier", "family", self.family, _FAMILIES)

    def __call__(self, key: PRNGKeyArray, num_inputs: int) -> FourierFeature:
        """Lengthscales start at the root of the number of inputs."""
        start = jnp.full(num_inputs if self.ard else 1, 0.5 * np.log(num_inputs))
        return FourierFeature(start, self.family, num_inputs)


# --- deep kernels --------------------------------------------------------------------------------------------------


class NetworkFeature(RandomFeature):
    """cos and sin of h(omega)^T f(x): a network f before a stationary kernel, h shifting its distribution."""

    extractor: eqx.nn.MLP
    """f."""
    shifter: eqx.nn.MLP | None
    """h(omega) = omega + shifter(omega); the identity is among what it can learn, and is where it starts."""
    log_replicate: Float[Array, ""] | None
    """The logarithm of the spread of x's random copies."""
    family: Family = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    latent: int = eqx.field(static=True)
    num_inputs: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "m W"]:
        """Frequencies in f's latent space and, with random copies of x, what to multiply x by."""
        key_frequencies, key_copies = jax.random.split(key)
        frequencies = draw_frequencies(self.family, key_frequencies, num_samples, self.latent)
        if self.log_replicate is None:
            return frequencies
        return jnp.concatenate([frequencies, jax.random.normal(key_copies, (num_samples, self.num_inputs))], axis=1)

    def __call__(self, omega: Float[Array, " W"], x: Float[Array, " D"]) -> Float[Array, "2"]:
        """Equation 15 in the latent space."""
        frequency, noise = omega[: self.latent], omega[self.latent :]
        if self.shifter is not None:
            frequency = frequency + self.shifter(frequency)
        if self.log_replicate is not None:
            x = x * (1.0 + jnp.exp(self.log_replicate) * noise)
        return _fourier(frequency, self.extractor(x))

    def batch(
        self, omega: Float[Array, "m W"], X: Float[Array, "N D"], weight: Float[Array, " N"]
    ) -> Float[Array, "2 m N"]:
        """The same by products of matrices, where every draw sees the same f(x)."""
        if self.log_replicate is not None:
            return super().batch(omega, X, weight)
        frequencies = omega if self.shifter is None else omega + jax.vmap(self.shifter)(omega)
        *hidden, last = self.extractor.layers
        values = X.T
        for layer in hidden:
            assert layer.bias is not None
            values = _ACTIVATIONS[self.activation](_product(layer.weight, values) + layer.bias[:, None])
        return _fourier_batch(frequencies, _product(last.weight, values), weight)


@settings
class Network:
    """A deep kernel: a network f on the inputs, then a stationary kernel, or one whose distribution is learned.

    Args:
        widths: Of f's hidden layers. The paper has layers of 200 to 5,000.
        latent: The number of f's outputs, which are the stationary kernel's inputs.
        shifter: The width of the hidden layer of h, which learns the frequencies' distribution (the rightmost diagram
            of Fig. A.1, and the paper's choice); `None` keeps it fixed (the middle one).
        replicate: Whether each draw sees x multiplied by random numbers about 1, of a spread that is learned (the
            leftmost diagram of Fig. A.2). It makes f run once a draw: m times the work.
        family: The stationary kernel to start from.
        activation: "tanh", "relu" or "silu".
        scale: The standard deviation of f's outputs is about this at the start: small is smooth.

    Example:
        >>> feature = Network(widths=(16,), latent=3)(jax.random.key(0), 2)
        >>> feature(jnp.ones(3), jnp.zeros(2)).shape
        (2,)
    """

    widths: tuple[int, ...] = (100, 100)
    latent: int = 5
    shifter: int | None = 10
    replicate: bool = False
    family: Family = "rbf"
    activation: Activation = "tanh"
    scale: float = 1.0

    def __post_init__(self) -> None:
        given: Any = self.widths
        widths = (given,) if isinstance(given, int) else tuple(given)
        object.__setattr__(self, "widths", widths)
        for width in widths:
            check_positive("Network", "widths", width, whole=True)
        if not widths or len(set(widths)) > 1:
            raise SettingsError(f"Network(widths={widths}): expected one or more hidden layers of one width")
        check_positive("Network", "latent", self.latent, whole=True)
        if self.shifter is not None:
            check_positive("Network", "shifter", self.shifter, whole=True)
        check_positive("Network", "scale", self.scale)
        check_choice("Network", "family", self.family, _FAMILIES)
        check_choice("Network", "activation", self.activation, tuple(_ACTIVATIONS))

    def __call__(self, key: PRNGKeyArray, num_inputs: int) -> NetworkFeature:
        """Weights with variance one over their number of inputs (LeCun), biases zero, h the identity."""
        key_f, key_h = jax.random.split(key)
        activation = _ACTIVATIONS[self.activation]
        depth = len(self.widths)
        # moving all of f(x) by the same amount changes no difference, so f has no last bias: nothing would decide it
        extractor = _network(
            num_inputs, self.latent, self.widths[0], depth, activation, key_f, last=self.scale, last_bias=False
        )
        shifter = None
        if self.shifter is not None:
            shifter = _network(self.latent, self.latent, self.shifter, 1, activation, key_h, last=0.0, last_bias=True)
        replicate = jnp.asarray(np.log(0.1)) if self.replicate else None
        return NetworkFeature(
            extractor, shifter, replicate, self.family, self.activation, self.latent, num_inputs
        )  # fmt: skip


def _network(
    num_inputs: int, num_outputs: int, width: int, depth: int, activation: Any, key: PRNGKeyArray, *, last: float,
    last_bias: bool,
) -> eqx.nn.MLP:  # fmt: skip
    """A fully connected network; the last layer's weights are multiplied by `last`."""
    network = eqx.nn.MLP(
        num_inputs, num_outputs, width, depth, activation=activation, use_final_bias=last_bias, key=key
    )
    for number, own in enumerate(jax.random.split(key, depth + 1)):
        layer = network.layers[number]
        scale = (last if number == depth else 1.0) / np.sqrt(layer.in_features)
        start = (
            scale * jax.random.normal(own, layer.weight.shape),
            jnp.zeros(layer.out_features) if layer.use_bias else None,
        )
        network = eqx.tree_at(functools.partial(_weights_of, number), network, start, is_leaf=_is_none)
    return network


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _weights_of(number: int, network: eqx.nn.MLP) -> Any:
    return network.layers[number].weight, network.layers[number].bias


# --- kernels that are not stationary: the paper's examples -----------------------------------------------------------


class Exponential(RandomFeature):
    """g = exp(omega^T x), omega ~ N(0, I): k(x, x') = exp(|x + x'|^2 / 2), of infinitely many features (Theorem A.1).

    Example:
        >>> float(Exponential(1)(jnp.zeros(1), jnp.ones(1))[0])
        1.0
    """

    num_inputs: int = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "m D"]:
        """Standard normal."""
        return jax.random.normal(key, (num_samples, self.num_inputs))

    def __call__(self, omega: Float[Array, " D"], x: Float[Array, " D"]) -> Float[Array, "1"]:
        """exp(omega^T x)."""
        return jnp.exp(omega @ x)[None]


class Polynomial(RandomFeature):
    """k(x, x') = (x^T x' + c)^n from products of n coordinates drawn at random (Theorem A.2).

    The paper writes g = exp(omega^T log x), which is prod_i x_i^omega_i; the powers are whole numbers, so that product
    is right for negative x too, where the logarithm is not.

    Example:
        >>> round(float(Polynomial(1, degree=2, constant=1.0)(jnp.array([0.0, 2.0]), 3.0 * jnp.ones(1))[0]), 9)
        18.0
    """

    num_inputs: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)
    constant: float = eqx.field(static=True)

    def draw(self, key: PRNGKeyArray, num_samples: int) -> Float[Array, "m W"]:
        """Multinomial: how often each coordinate is drawn in n draws, the constant with probability 1/2."""
        D = self.num_inputs
        probabilities = jnp.array([0.5] + [0.5 / D] * D)
        drawn = jax.random.choice(key, D + 1, (num_samples, self.degree), p=probabilities)
        return jnp.sum(jax.nn.one_hot(drawn, D + 1, dtype=probabilities.dtype), axis=1)

    def __call__(self, omega: Float[Array, " W"], x: Float[Array, " D"]) -> Float[Array, "1"]:
        """prod_i x_i^omega_i with x = [sqrt(2 c), sqrt(2 D) x]."""
        root = jnp.full(1, np.sqrt(2.0 * self.constant))
        longer = jnp.concatenate([root, np.sqrt(2.0 * self.num_inputs) * x])
        return jnp.prod(jnp.where(omega == 0.0, 1.0, longer) ** omega)[None]  # 0^0 has no gradient
