"""A fleet of pumps learns how wear looks; each pump, also a new one, is predicted from its own few rows.

Data made up here, seed 0: eight pumps with 6 to 40 rows, 30 % of each held out, and a ninth that comes later with 5.
The fit takes some ten exchanges; the script prints how many, and the bytes that each pump would have sent.
Needs fedgauss and NumPy alone. Runs as it is, `python examples/fleet.py`, or cell by cell.
"""

# %% The data: vibration over hours, a curve of its own for each pump

import numpy as np

import fedgauss as fg

rng = np.random.default_rng(0)


def pump(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Hours (thousands) and vibration (mm/s): a trend, a wobble, and noise of standard deviation 0.15."""
    slope, swing, phase = rng.uniform(0.2, 0.6), rng.uniform(0.5, 1.5), rng.uniform(0.0, 6.0)
    hours = np.sort(rng.uniform(0.0, 10.0, size=num_rows))
    return hours[:, None], 2.0 + slope * hours + swing * np.sin(hours + phase) + rng.normal(0.0, 0.15, num_rows)


sizes = (6, 8, 10, 12, 16, 20, 30, 40)
fleet = fg.Federation.from_arrays({f"pump-{i}": pump(n) for i, n in enumerate(sizes, start=1)})
train, test = fleet.split(0.3, seed=0)
print(train, "to learn from,", test, "held out", sep="\n")

# %% One prior for the fleet

model = fg.FGPR(kernel="rbf", solver="exact").fit(train, seed=0, progress=False)
print(f"{len(model.history_)} exchanges")
for name, value in model.parameters_.items():
    print(f"  {name}: {float(np.ravel(value)[0]):.3g}")
print("  noise, standard deviation (0.15 is true):", round(float(np.sqrt(model.parameters_["noise_variance"])), 3))

# %% Against each pump alone

alone = fg.Separate(fg.FGPR()).fit(train, seed=0, progress=False)
for name, fitted in (("FGPR", model), ("Separate", alone)):
    row = fitted.evaluate(test).filter(client="mean").row(0, named=True)
    print(f"{name:9} RMSE {row['rmse']:.3f}  NLPD {row['nlpd']:.2f}  in 95 %: {100 * row['coverage_95']:.0f} %")

# %% The pump with the fewest rows, and its interval

hours = np.linspace(0.0, 10.0, 6)[:, None]
mean, std = model.predict("pump-1", hours, return_std=True)
for x, m, s in zip(hours[:, 0], mean, std, strict=True):
    print(f"after {x:4.1f} thousand hours: {m:5.2f} ± {1.96 * s:.2f} mm/s")

# %% A pump that took no part, from five rows of its own

newcomer = fg.Client(*pump(5), name="pump-9")
mean, std = model.predict(newcomer, hours, return_std=True)
print(f"{newcomer}: {mean[-1]:.2f} ± {1.96 * std[-1]:.2f} mm/s after {hours[-1, 0]:.0f} thousand hours")

# %% What left each pump

for name in ("pump-1", "pump-8"):
    sent = model.ledger_.filter(client=name, direction="up")
    kinds = ", ".join(sent["message"].unique().sort())
    print(f"{name}, {train[name].num_rows} rows, sent {len(sent)} messages, {sent['bytes'].sum()} bytes: {kinds}")
