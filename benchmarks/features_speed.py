"""How fast is FedBNR beside PyTorch and NumPy: a round of kernel learning, and the sums of ten million rows?

The paper gives no times. Bad answers: below 5 times a PyTorch loop over clients in a round of phase 1; phase 2 above
1.5 times the time of NumPy's Phi^T Phi alone, whether the features are computed or given; peak memory that grows with
the rows by more than a few copies of the data.

Phase 1: 10 clients with 700 rows of 20 inputs; one or two hidden layers of 200, 5 outputs, a shifter of 10, 50 draws;
50 full-batch Adam steps on each client's evidence. Ours is a whole round, schedule and ledger included, the mean of
those after the first, which compiles. PyTorch has the same network and evidence (Cholesky, autograd) and the quickest
of its three Adams, on all cores, in 64 bits and beside it in 32, which is not ours; before anything is timed, loss and
gradient of both must agree to 1e-8.

Phase 2: 10 clients with a million rows of 5 inputs, 200 Fourier features: one `GatherSums` exchange over data that are
in place, compiled. NumPy has the features in memory already, 50 times 200,000 rows, and only its products count; it
knows that Phi^T Phi is symmetric and does half of the work. Beside it, ours with features that are given too. Memory is
the peak of a process that does one exchange, beyond what it held before it made the data, and beyond the data.

Each measurement runs in a process of its own; times are medians of three processes taken in turn. Ratios are of one run
of this script.

    python features_speed.py [--scale 1.0] [--turns 3] [--cores 2]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CLIENTS, ROWS, D, RATE, DRAWS = 10, 700, 20, 0.005, 50
SUM_CLIENTS, SUM_ROWS, SUM_D, FEATURES = 10, 10_000_000, 5, 200
PIECES = 50
DEPTHS = (1, 2)
ADAMS: tuple[dict[str, bool], ...] = ({}, {"foreach": True}, {"fused": True})


# --- phase 1 ---------------------------------------------------------------------------------------------------------


def kernel_learning(depth: int, rounds: int, steps: int = 1) -> Any:
    """The federation, and the algorithm on it."""
    import numpy as np

    import fedgauss as fg
    from fedgauss.algorithms.fedbnr import FeatureAveraging, LocalSteps
    from fedgauss.gp.feature_regression import FeatureModel

    fg.prepare()
    random = np.random.default_rng(0)
    X = random.normal(size=(CLIENTS, ROWS, D))
    y = np.sin(X @ random.normal(size=D) / 3.0) + 0.1 * random.normal(size=X.shape[:2])
    federation = fg.Federation.from_arrays({f"{c:02}": (X[c], y[c]) for c in range(CLIENTS)})
    model = FeatureModel(
        features=fg.features.Network(widths=(200,) * depth, latent=5, shifter=10), num_inputs=D, num_targets=1,
        num_samples=DRAWS, noise_floor=1e-4, noise_std=0.3, weight_std=1.0,
    )  # fmt: skip
    local = LocalSteps(steps=steps, batch_size=None, optimiser="adam", learning_rate=RATE, decay=None)
    return federation, FeatureAveraging(model=model, local=local, rounds=rounds)


def fedgauss_round(depth: int, steps: int, cores: int) -> dict[str, float]:
    """The mean of the rounds after the first."""
    import fedgauss as fg
    from fedgauss.engines.local import Run

    federation, algorithm = kernel_learning(depth, rounds=6, steps=steps)
    run = Run(algorithm, federation, schedule=fg.Synchronous(), engine=fg.Local(devices=cores), seed=0)()
    seconds = [row["seconds"] for row in run.history[1:]]
    return {"seconds": sum(seconds) / len(seconds)}


def as_torch(theta: Any, constants: Any, dtype: Any) -> tuple[dict[str, Any], Any]:
    """Leaves that torch learns, and omega."""
    import numpy as np
    import torch

    learned = {name: torch.tensor(np.asarray(leaf), dtype=dtype, requires_grad=True) for name, leaf in theta.items()}
    return learned, torch.tensor(np.asarray(constants["omega"]), dtype=dtype)


def torch_loss(theta: dict[str, Any], omega: Any, X: Any, y: Any) -> Any:
    """The negative log evidence of a row."""
    import math

    import torch

    def network(name: str, values: Any) -> Any:
        last = max(int(key.split(".")[3]) for key in theta if key.startswith(f"features.{name}.layers."))
        for number in range(last + 1):
            layer = f"features.{name}.layers.{number}."
            values = torch.nn.functional.linear(values, theta[f"{layer}weight"], theta.get(f"{layer}bias"))
            values = torch.tanh(values) if number < last else values
        return values

    angle = network("extractor", X) @ (omega + network("shifter", omega)).T
    phi = torch.cat([torch.cos(angle), torch.sin(angle)], dim=1) / math.sqrt(len(omega))
    log_sigma, log_lambda = theta["noise_std"][0], theta["weight_std"][0]
    (N, R), log_rho = phi.shape, 2.0 * (log_sigma - log_lambda)
    factor = torch.linalg.cholesky(phi.T @ phi + torch.exp(log_rho) * torch.eye(R, dtype=X.dtype))
    half = torch.linalg.solve_triangular(factor, (phi.T @ y)[:, None], upper=False)
    square = (y @ y - torch.sum(half**2)) * torch.exp(-2.0 * log_sigma)
    log_det = 2.0 * torch.log(torch.diagonal(factor)).sum()
    return 0.5 * (N * (math.log(2.0 * math.pi) + 2.0 * log_sigma) + log_det - R * log_rho + square) / N


def torch_round(depth: int, bits: int, steps: int, cores: int) -> dict[str, float]:
    """A loop over clients; the quickest of torch's Adams."""
    import jax
    import torch

    torch.set_num_threads(cores)
    dtype = {64: torch.float64, 32: torch.float32}[bits]
    federation, algorithm = kernel_learning(depth, rounds=1)
    theta, constants = algorithm.model.init(jax.random.key(0))
    data = [(torch.tensor(c.X, dtype=dtype), torch.tensor(c.Y[:, 0], dtype=dtype)) for c in federation.clients]

    def update(options: dict[str, bool]) -> None:
        for X, y in data:
            learned, omega = as_torch(theta, constants, dtype)
            optimiser = torch.optim.Adam(learned.values(), lr=RATE, **options)
            for _ in range(steps):
                optimiser.zero_grad()
                torch_loss(learned, omega, X, y).backward()
                optimiser.step()

    return {"seconds": min(median_seconds(lambda options=options: update(options), 3) for options in ADAMS)}


def same(depth: int) -> dict[str, float]:
    """How far loss and gradient are apart, relative to the largest entry of each array, at parameters off the start."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from fedgauss.gp.summed import sums_of

    federation, algorithm = kernel_learning(depth, rounds=1)
    theta, constants = algorithm.model.init(jax.random.key(0))
    random = np.random.default_rng(1)
    theta = {name: leaf + 0.1 * random.normal(size=leaf.shape) for name, leaf in theta.items()}
    client = federation.clients[0]

    def loss(theta: Any) -> Any:
        X, Y = jnp.asarray(client.X), jnp.asarray(client.Y)
        return algorithm.model.objective(sums_of(algorithm.model, theta, constants, X, Y, len(X)), theta)

    value, gradient = jax.value_and_grad(loss)(theta)
    learned, omega = as_torch(theta, constants, torch.float64)
    other = torch_loss(learned, omega, torch.tensor(client.X), torch.tensor(client.Y[:, 0]))
    other.backward()
    pairs = [(value, other.detach()), *((gradient[name], leaf.grad) for name, leaf in learned.items())]
    apart = [np.abs(np.asarray(a) - b.numpy()).max() / np.abs(np.asarray(a)).max() for a, b in pairs]
    return {"difference": float(max(apart))}


# --- phase 2 ---------------------------------------------------------------------------------------------------------


def gather_sums(features: Any, num_inputs: int, num_rows: int, cores: int) -> tuple[Any, Any]:
    """A run of one exchange of sums, ready to be asked."""
    import numpy as np

    import fedgauss as fg
    from fedgauss.algorithms.sums import GatherSums
    from fedgauss.engines.local import Run
    from fedgauss.gp.feature_regression import FeatureModel

    random = np.random.default_rng(0)
    each = num_rows // SUM_CLIENTS
    federation = fg.Federation.from_arrays(
        {f"{c:02}": (random.normal(size=(each, num_inputs)), random.normal(size=each)) for c in range(SUM_CLIENTS)}
    )
    num_samples = 1 if num_inputs == FEATURES else FEATURES // 2
    model = FeatureModel(
        features=features, num_inputs=num_inputs, num_targets=1, num_samples=num_samples, noise_floor=1e-4,
        noise_std=0.3, weight_std=1.0,
    )  # fmt: skip
    algorithm = GatherSums(model=model, num_inputs=num_inputs, num_targets=1)
    return Run(algorithm, federation, schedule=fg.Synchronous(), engine=fg.Local(devices=cores), seed=0), federation


def asked(run: Any, repeats: int) -> float:
    """The median time in which all clients' sums are computed."""
    import numpy as np
    import threadpoolctl

    request = run.algorithm.request(run.server)
    everybody = np.arange(len(run.names))
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        return median_seconds(lambda: run.worker.compute(request, 0, everybody, run.clients), repeats)


def fourier_sums(num_rows: int, cores: int) -> dict[str, float]:
    """Features computed and summed."""
    import fedgauss as fg

    fg.prepare()
    return {"seconds": asked(gather_sums(fg.features.Fourier(), SUM_D, num_rows, cores)[0], 3)}


def given_sums(num_rows: int, cores: int) -> dict[str, float]:
    """The inputs are the features: as many rows at a time as NumPy has, as many times."""
    import jax.numpy as jnp

    import fedgauss as fg

    fg.prepare()

    class Given(fg.features.RandomFeature):
        def draw(self, key: Any, num_samples: int) -> Any:
            return jnp.zeros((num_samples, 1))

        def __call__(self, omega: Any, x: Any) -> Any:
            return x

    def given(key: Any, num_inputs: int) -> Given:
        return Given()

    return {"seconds": PIECES * asked(gather_sums(given, FEATURES, num_rows // PIECES, cores)[0], 5)}


def numpy_products(num_rows: int, cores: int) -> dict[str, float]:
    """Phi^T Phi of features in memory."""
    import numpy as np
    import threadpoolctl

    Phi = np.random.default_rng(0).normal(size=(num_rows // PIECES, FEATURES))
    with threadpoolctl.threadpool_limits(cores, user_api="blas"):
        return {"seconds": PIECES * median_seconds(lambda: Phi.T @ Phi, 5)}


def memory(num_rows: int, cores: int) -> dict[str, float]:
    """GiB at the peak of one exchange."""
    import fedgauss as fg

    fg.prepare()
    gather_sums(fg.features.Fourier(), SUM_D, 10 * SUM_CLIENTS, cores)[0]()
    before = peak_bytes()
    run, federation = gather_sums(fg.features.Fourier(), SUM_D, num_rows, cores)
    data = sum(client.X.nbytes + client.Y.nbytes for client in federation.clients)
    run()
    return {"data": data / 2**30, "peak beyond": (peak_bytes() - before - data) / 2**30}


# --- taking turns ----------------------------------------------------------------------------------------------------


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of a call, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def peak_bytes() -> int:
    """The most memory this process ever held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "fedgauss": fedgauss_round, "torch": torch_round, "same": same, "fourier": fourier_sums, "given": given_sums,
    "numpy": numpy_products, "memory": memory,
}  # fmt: skip


def measure(name: str, *arguments: int, cores: int) -> dict[str, float]:
    """One measurement in a fresh process on the first `cores` cores."""
    given = arguments if name == "same" else (*arguments, cores)
    command = [sys.executable, __file__, "--measure", name, "--cores", str(cores), *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def in_turn(cases: dict[str, tuple[Any, ...]], turns: int, cores: int) -> dict[str, float]:
    """The median time of each measurement."""
    found = [{label: measure(*case, cores=cores)["seconds"] for label, case in cases.items()} for _ in range(turns)]
    return {label: sorted(turn[label] for turn in found)[turns // 2] for label in cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="of a client in a round of phase 1")
    parser.add_argument("--scale", type=float, default=1.0, help="of the rows of phase 2")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=["phase 1", "phase 2", "memory"])
    parser.add_argument("--dry", action="store_true", help="print, and record nothing")
    parser.add_argument("--measure")
    parser.add_argument("arguments", type=int, nargs="*")
    options = parser.parse_args()
    if options.measure:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        print(json.dumps(MEASURES[options.measure](*options.arguments)))
        return

    def record(what: str, case: dict[str, Any], values: dict[str, float]) -> None:
        from rows import record

        print(what, json.dumps(case), json.dumps(values), flush=True)
        if not options.dry:
            record("features_speed", {"what": what} | case | {"cores": options.cores}, values, seed=0)

    if options.only in (None, "phase 1"):
        for depth in DEPTHS:
            difference = measure("same", depth, cores=options.cores)["difference"]
            if not difference < 1e-8:
                raise SystemExit(f"loss or gradient differ by {difference:.1e}: there is nothing to compare")
            cases = {"fedgauss": ("fedgauss", depth, options.steps)}
            cases |= {name: ("torch", depth, bits, options.steps) for name, bits in (("torch", 64), ("torch 32", 32))}
            values = in_turn(cases, options.turns, options.cores)
            values["times torch"] = values["torch"] / values["fedgauss"]
            values["times torch 32"] = values["torch 32"] / values["fedgauss"]
            record("phase 1", {"hidden layers": depth, "steps": options.steps}, values | {"difference": difference})
    num_rows = round(options.scale * SUM_ROWS)
    if options.only in (None, "phase 2"):
        cases = {"fourier": ("fourier", num_rows), "given": ("given", num_rows), "numpy": ("numpy", num_rows)}
        values = in_turn(cases, options.turns, options.cores)
        values |= {f"{name} over numpy": values[name] / values["numpy"] for name in ("fourier", "given")}
        record("phase 2", {"rows": num_rows}, values)
    if options.only in (None, "memory"):
        for some in (num_rows // 10, num_rows):
            record("memory", {"rows": some}, measure("memory", some, cores=options.cores))


if __name__ == "__main__":
    main()
