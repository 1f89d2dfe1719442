"""A client of a million rows beside one of five, and ten thousand clients: what users bring."""

import numpy as np
import pytest

import fedgauss as fg


@pytest.mark.slow
def test_a_client_of_a_million_rows_learns_beside_one_of_five() -> None:
    random = np.random.default_rng(0)

    def client(rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.uniform(0.0, 1.0, size=(rows, 1))
        return x, np.sin(6.0 * x[:, 0]) + 0.5 * random.normal(size=rows)

    federation = fg.Federation.from_arrays({"large": client(1_000_000), "small": client(5)})
    model = fg.FGPR(kernel="matern52", rounds=40, batch_size=256).fit(federation, progress=False)
    assert 0.2 < model.parameters_["noise_variance"] < 0.3
    at = np.linspace(0.05, 0.95, 7)[:, None]
    mean, std = model.predict("large", at, return_std=True, include_noise=False)
    assert model.posterior("large").kind == "statespace"
    assert np.all(std < 0.01)
    assert np.all(np.abs(mean - np.sin(6.0 * at[:, 0])) < 5.0 * std + 1e-3)
    assert np.all(model.predict("small", at, return_std=True)[1] > 0.4)


def test_ten_thousand_clients_take_a_round_together() -> None:
    random = np.random.default_rng(0)
    X = random.uniform(size=(10_000, 6, 1))
    federation = fg.Federation.from_arrays({f"{c:05}": (x, np.sin(6.0 * x[:, 0])) for c, x in enumerate(X)})
    model = fg.FGPR(rounds=2, local_steps=1).fit(federation, schedule=fg.Synchronous(cohort=500), progress=False)
    assert model.history_["clients_answered"].to_list() == [500, 500]
    assert model.ledger_.filter(message="LocalFit").height == 1000
    assert model.predict("00042", X[42]).shape == (6,)
