"""Bayesian linear regression on random features: a model of four sums, and its posterior.

Yu et al., "Federated Bayesian Neural Regression", equations 8 to 13: f(x) = w^T phi(x) with w ~ N(0, lambda^2 I). The
evidence and its best scales are in `gp.evidence`. Several targets share G = Phi Phi^T, each with its own sigma and
lambda.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from fedgauss.gp.chunks import predict_in_chunks
from fedgauss.gp.evidence import best_scales, log_evidence, why_not_sums
from fedgauss.gp.features import Features, feature_matrix, feature_rows, from_config, rebuild, skeleton, split
from fedgauss.gp.features import to_config as features_config
from fedgauss.gp.posterior import Prediction
from fedgauss.gp.summed import Flat, SummedModel
from fedgauss.linalg import checked_cholesky, gram

_CHUNK_ROWS = 8192


class FeatureSums(NamedTuple):
    """All that the last layer needs of the data. Sums over disjoint rows add, field by field."""

    phi_phi: Float[Array, "R R"]
    """G = Phi Phi^T."""
    phi_y: Float[Array, "R P"]
    """b, a column a target."""
    y_y: Float[Array, " P"]
    num_rows: Float[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureModel(SummedModel):
    """Random features with an exact last layer.

    Args:
        features: The features at their start.
        num_inputs: D.
        num_targets: P.
        num_samples: m.
        noise_floor: The least noise variance, in the model's units.
        noise_std: sigma to start from.
        weight_std: lambda to start from.
    """

    scales: ClassVar[tuple[str, ...]] = ("noise_std", "weight_std")

    features: Features
    num_inputs: int
    num_targets: int
    num_samples: int
    noise_floor: float
    noise_std: float
    weight_std: float

    def init(self, key: PRNGKeyArray) -> tuple[Flat, Flat]:
        """The features' own start, sigma and lambda for every target; m draws of omega, the same for all clients."""
        key_features, key_omega = jax.random.split(key)
        feature = self.features(key_features, self.num_inputs)
        theta = {
            "noise_std": jnp.full(self.num_targets, np.log(self.noise_std)),
            "weight_std": jnp.full(self.num_targets, np.log(self.weight_std)),
        }
        theta |= {f"features.{name}": leaf for name, leaf in split(feature)[0].items()}
        return theta, {"omega": feature.draw(key_omega, self.num_samples)}

    def prepare(self, theta: Flat, constants: Flat) -> Any:
        """The features' parameters and omega."""
        names = skeleton(self.features, self.num_inputs).names
        return {name: theta[f"features.{name}"] for name in names}, constants["omega"]

    def phi(self, prepared: Any, X: Float[Array, "N D"]) -> Float[Array, "N R"]:
        """The features of these rows."""
        parameters, omega = prepared
        return feature_matrix(rebuild(self.features, self.num_inputs, parameters), omega, X)

    def row_sums(
        self, prepared: Any, X: Float[Array, "N D"], Y: Float[Array, "N P"], mask: Float[Array, " N"]
    ) -> FeatureSums:
        """The four sums."""
        parameters, omega = prepared
        feature = rebuild(self.features, self.num_inputs, parameters)
        phi, Y = feature_rows(feature, omega, jnp.asarray(X), jnp.asarray(mask)), Y * mask[:, None]
        return FeatureSums(gram(phi), phi @ Y, jnp.sum(Y * Y, axis=0), jnp.sum(mask))

    def objective(self, sums: FeatureSums, theta: Flat) -> Float[Array, ""]:
        """-log p(Y) / N: the targets' evidences add."""
        total = sum(
            log_evidence(
                sums.phi_phi, sums.phi_y[:, p], sums.y_y[p], sums.num_rows, theta["noise_std"][p],
                theta["weight_std"][p],
            )
            for p in range(self.num_targets)
        )  # fmt: skip
        return -jnp.asarray(total) / jnp.maximum(sums.num_rows, 1.0)

    def tuned(self, sums: FeatureSums, theta: Flat) -> Flat:
        """sigma and lambda of the largest evidence."""
        G, b, y_y, N = (np.asarray(part) for part in sums)
        if float(N) == 0.0:
            return theta
        found = [best_scales(G, b[:, p], float(y_y[p]), float(N), self.noise_floor) for p in range(self.num_targets)]
        return theta | {
            "noise_std": np.log([one.noise_std for one in found]),
            "weight_std": np.log([one.weight_std for one in found]),
        }

    def posterior(self, sums: FeatureSums, theta: Flat, constants: Flat) -> "FeaturePosterior":
        """Equations 11 to 13."""
        return FeaturePosterior.condition(self, sums, theta, constants)

    def refusal(self, sums: FeatureSums) -> str | None:
        """See `why_not_sums`."""
        G, b, y_y, N = (np.asarray(part) for part in sums)
        return why_not_sums(G, b, y_y, float(N))

    def parameters(self, theta: Flat, input_scale: Any, target_scale: Any) -> Flat:
        """Noise and weight variances in the target's units; the features' parameters are of standardised inputs."""
        scales = {name: np.exp(2.0 * np.asarray(theta[name])) * target_scale**2 for name in self.scales}
        of_features = {name: np.asarray(leaf) for name, leaf in theta.items() if name not in self.scales}
        return {"noise_variance": scales["noise_std"], "weight_variance": scales["weight_std"]} | of_features

    def to_config(self) -> dict[str, Any]:
        """See `SummedModel.to_config`."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {"features": features_config(self.features)}

    @classmethod
    def from_config(cls, config: dict[str, Any], features: Features | None) -> "FeatureModel":
        """What `to_config` wrote; `features` are the user's own, if they were."""
        return cls(**(config | {"features": from_config(config["features"], features)}))

    def bounded(self, theta: Flat) -> Flat:
        """sigma at its floor or above."""
        return theta | {"noise_std": jnp.maximum(theta["noise_std"], 0.5 * np.log(self.noise_floor))}

    def noise_variance(self, theta: Flat) -> Float[Array, " P"]:
        """sigma^2."""
        return jnp.exp(2.0 * jnp.asarray(theta["noise_std"]))


@dataclasses.dataclass(frozen=True, eq=False)
class FeaturePosterior:
    """The posterior of f = w^T phi(x), for every target. Made by `condition`.

    Args:
        model: The features.
        prepared: Their parameters and omega.
        weights: The posterior mean of w, a column a target.
        contract: L^-1 for each target, with B = L L^T.
        noise: sigma^2 for each target.
        notes: `jitter` added to B, relative to its mean diagonal; `num_features`.
    """

    kind: ClassVar[str] = "features"

    model: FeatureModel
    prepared: Any
    weights: Float[Array, "R P"]
    contract: Float[Array, "P R R"]
    noise: Float[np.ndarray, " P"]
    notes: dict[str, float | int | str]

    @classmethod
    def condition(cls, model: FeatureModel, sums: FeatureSums, theta: Flat, constants: Flat) -> "FeaturePosterior":
        """The posterior given the rows behind the sums."""
        G, b = np.asarray(sums.phi_phi), np.asarray(sums.phi_y)
        R = len(G)
        noise = np.exp(2.0 * np.asarray(theta["noise_std"]))
        rho = noise / np.exp(2.0 * np.asarray(theta["weight_std"]))
        contract, weights, jitters = [], [], []
        for p in range(model.num_targets):
            L, jitter = checked_cholesky(G + rho[p] * np.eye(R), "the precision of the last layer's weights")
            inverse = jax.scipy.linalg.solve_triangular(L, jnp.eye(R), lower=True)
            contract.append(inverse)
            weights.append(inverse.T @ (inverse @ b[:, p]))
            jitters.append(jitter)
        notes: dict[str, float | int | str] = {"num_features": R, "jitter": max(jitters)}
        prepared = model.prepare(theta, constants)
        return cls(model, prepared, jnp.stack(weights, axis=1), jnp.stack(contract), noise, notes)

    def predict(self, X_new: Float[Any, "T D"]) -> Prediction:
        """Mean and variance of f, [T, P], without noise."""

        def one(X: Any) -> Any:
            return _predict(self.model, self.prepared, self.weights, self.contract, self.noise, X)

        return predict_in_chunks(one, np.asarray(X_new, dtype=np.float64), _CHUNK_ROWS)

    def covariance(self, X_new: Float[Any, "T D"]) -> Float[Array, "P T T"]:
        """The covariance of f between new inputs, for every target."""
        half = self.contract @ self.model.phi(self.prepared, jnp.asarray(X_new)).T
        return jnp.asarray(self.noise)[:, None, None] * (half.transpose(0, 2, 1) @ half)

    def sample(self, key: PRNGKeyArray, X_new: Float[Any, "T D"], num_samples: int) -> Float[Array, "S T P"]:
        """Draws of f."""
        R, P = self.weights.shape
        noise = jax.random.normal(key, (num_samples, P, R)) * jnp.sqrt(jnp.asarray(self.noise))[None, :, None]
        weights = self.weights.T[None] + jnp.einsum("spr,prq->spq", noise, self.contract)
        return jnp.einsum("tr,spr->stp", self.model.phi(self.prepared, jnp.asarray(X_new)), weights)


def _predict_rows(
    model: FeatureModel, prepared: Any, weights: Any, contract: Any, noise: Any, X: Any
) -> tuple[Float[Array, "T P"], Float[Array, "T P"]]:
    phi = model.phi(prepared, X)
    spread = jnp.stack([jnp.sum((phi @ one.T) ** 2, axis=1) for one in contract], axis=1)
    return phi @ weights, spread * jnp.asarray(noise)[None, :]


_predict = jax.jit(_predict_rows, static_argnums=0)
