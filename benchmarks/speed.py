"""How fast is a client's local update beside GPyTorch and LAPACK's floor, and a round beside the authors' R code?

Bad answers: below 60 / 5 / 2.2 times a GPyTorch loop over clients at 20 clients and minibatches of 32 / 128 / 256 (one
thread); above 1.6 times the cost of potrf + potri alone at 128 and 256; less than 1.85 times our own one-core speed on
two cores; more than 0.7 ms a round of CURRIN with the authors' settings (their R code took 6.5); more than 1 s a round
of 10,000 clients with 20 points each.

Each measurement runs in a process of its own (`--measure`), pinned to the cores it may use; times are medians within a
process, and of three processes taken in turn. Ratios are of one run of this script, since the machine's clock and its
neighbours are not ours.

    python speed.py
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CLIENTS, D, STEPS, RATE = 20, 5, 20, 0.05
BATCHES = (32, 128, 256)
TURNS = 3


def median_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of a call, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def data(batch: int) -> tuple[Any, Any]:
    """Clients with rows for four minibatches; a minibatch is `rows[e]` for everybody."""
    import numpy as np

    random = np.random.default_rng(0)
    X = random.random((CLIENTS, 4 * batch, D))
    y = np.sin(6 * X[..., 0]) + X[..., 1] ** 2 + 0.1 * random.normal(size=X.shape[:2])
    return X, (y - y.mean(1, keepdims=True)) / y.std(1, keepdims=True)


def fedgauss_update(batch: int, cores: int) -> dict[str, float]:
    """Our local update of all clients: the engine's own compiled call, minibatch drawing included."""
    import numpy as np

    import fedgauss as fg
    from fedgauss.engines.local import Run

    fg.prepare()
    X, y = data(batch)
    federation = fg.Federation.from_arrays({f"{c:02}": (X[c], y[c]) for c in range(CLIENTS)})
    method = fg.FGPR(
        kernel=fg.kernels.RBF(ard=True), batch_size=batch, local_steps=STEPS, learning_rate=RATE, rounds=10_000
    )
    run = Run(
        method._algorithm(method._space(D, 1.0), num_rows=federation.num_rows), federation, schedule=fg.Synchronous(),
        engine=fg.Local(devices=cores), seed=0,
    )  # fmt: skip
    import threadpoolctl

    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        request = run.algorithm.request(run.server)
        everybody = np.arange(CLIENTS)
        seconds = median_seconds(lambda: run.worker.compute(request, 0, everybody, run.clients), 15)
    return {"seconds": seconds}


def gpytorch_update(batch: int) -> dict[str, float]:
    """A loop over clients, 20 Adam steps each, with Cholesky factorisation (its fastest setting at these sizes)."""
    import gpytorch
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    X, y = data(batch)
    rows = np.random.default_rng(1).permuted(np.tile(np.arange(4 * batch), (STEPS, 1)), axis=1)[:, :batch]

    class Model(gpytorch.models.ExactGP):
        def __init__(self, inputs: Any, targets: Any, likelihood: Any) -> None:
            super().__init__(inputs, targets, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=D))

        def forward(self, inputs: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    clients = []
    for c in range(CLIENTS):
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        inputs, targets = torch.from_numpy(X[c]), torch.from_numpy(y[c])
        model = Model(inputs[:batch], targets[:batch], likelihood)
        clients.append((model, likelihood, inputs, targets))

    def update() -> None:
        for model, likelihood, inputs, targets in clients:
            optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
            objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
            model.train()
            for e in range(STEPS):
                x, t = inputs[rows[e]], targets[rows[e]]
                model.set_train_data(x, t, strict=False)
                optimiser.zero_grad()
                loss = -objective(model(x), t)
                loss.backward()
                optimiser.step()

    with gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.max_cholesky_size(10_000):
        return {"seconds": median_seconds(update, 3)}


def lapack_floor(batch: int) -> dict[str, float]:
    """potrf and potri of as many matrices as the update factorises, and nothing else."""
    import numpy as np
    import scipy.linalg
    import threadpoolctl

    X, _ = data(batch)
    gram = np.exp(-((X[0, :batch, None] - X[0, None, :batch]) ** 2).sum(-1) * 8) + 0.1 * np.eye(batch)
    gram = np.asfortranarray(gram)

    def update() -> None:
        for _ in range(CLIENTS * STEPS):
            factor, _ = scipy.linalg.lapack.dpotrf(gram, lower=1, clean=0)
            scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)

    with threadpoolctl.threadpool_limits(1):
        return {"seconds": median_seconds(update, 7)}


def currin_round(cores: int) -> dict[str, float]:
    """A round of CURRIN with the authors' settings, everything included: schedule, ledger, history."""
    import numpy as np
    from functions import CURRIN
    from multifidelity import make

    import fedgauss as fg

    federation = fg.Federation.from_arrays(make(CURRIN, 0, corners=True)[0])
    method = fg.FGPR.as_published()
    engine = fg.Local(devices=cores)
    method.fit(federation, engine=engine, progress=False)
    seconds = method.fit(federation, engine=engine, progress=False).history_["seconds"].to_numpy()
    return {"seconds": float(np.median(seconds[1:]))}


def many_clients(cores: int) -> dict[str, float]:
    """A round of 10,000 clients with 20 points each."""
    import numpy as np

    import fedgauss as fg

    random = np.random.default_rng(0)
    X = random.random((10_000, 20, 2))
    y = np.sin(6 * X[..., 0]) + 0.1 * random.normal(size=X.shape[:2])
    federation = fg.Federation.from_arrays({f"{c:05}": (X[c], y[c]) for c in range(len(X))})
    method = fg.FGPR(rounds=8, batch_size=20, local_steps=10)
    model = method.fit(federation, engine=fg.Local(devices=cores), progress=False)
    return {"seconds": float(np.median(model.history_["seconds"].to_numpy()[1:]))}


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "fedgauss": fedgauss_update, "gpytorch": gpytorch_update, "lapack": lapack_floor, "currin": currin_round,
    "many": many_clients,
}  # fmt: skip


def measure(name: str, *arguments: int, cores: int = 1) -> float:
    """One measurement in a fresh process on the first `cores` cores."""
    command = [sys.executable, __file__, "--measure", name, "--cores", str(cores), *map(str, arguments)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | threads, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("arguments", type=int, nargs="*")
    options = parser.parse_args()
    if options.measure:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
        print(json.dumps(MEASURES[options.measure](*options.arguments)))
        return

    from rows import record

    for batch in BATCHES:
        turns = [
            {
                "fedgauss": measure("fedgauss", batch, 1),
                "fedgauss, two cores": measure("fedgauss", batch, 2, cores=2),
                "GPyTorch": measure("gpytorch", batch),
                "potrf + potri": measure("lapack", batch),
            }
            for _ in range(TURNS)
        ]
        values = {name: sorted(turn[name] for turn in turns)[TURNS // 2] for name in turns[0]}
        values["times GPyTorch"] = values["GPyTorch"] / values["fedgauss"]
        values["over the floor"] = values["fedgauss"] / values["potrf + potri"]
        values["two cores gain"] = values["fedgauss"] / values["fedgauss, two cores"]
        record("speed", {"what": "local update", "batch": batch}, values, seed=0)
        print(batch, json.dumps(values), flush=True)
    for what, cores in (("currin", 1), ("currin", 2), ("many", 1), ("many", 2)):
        values = {"seconds a round": measure(what, cores, cores=cores)}
        record("speed", {"what": what, "cores": cores}, values, seed=0)
        print(what, cores, json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
