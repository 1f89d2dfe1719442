"""Reading a saved model back."""

import hashlib
import os
from pathlib import Path
from typing import Any

import polars as pl

from fedgauss.errors import DataError
from fedgauss.federation import Client, Federation
from fedgauss.files import read_json
from fedgauss.fitted.base import FORMAT, Fitted, Learned
from fedgauss.fitted.prior import CLASSES, FittedPrior, LearnedPrior
from fedgauss.fitted.sums import FittedLocal, FittedSums, LearnedLocal, LearnedSums
from fedgauss.gp.features import Features
from fedgauss.messages import from_bytes
from fedgauss.runtime import prepare
from fedgauss.scaling import Units


def load(folder: str | os.PathLike[str], *, features: Features | None = None) -> Fitted[Any]:
    """The model that `save` wrote.

    Args:
        folder: Where it is.
        features: The function that made the model's features, where that was your own: code is not saved.

    Raises:
        DataError: If the folder holds no model, or one of a version this one cannot read.

    Example:
        >>> import fedgauss as fg, numpy as np, tempfile
        >>> x = np.linspace(0.0, 1.0, 9)[:, None]
        >>> model = fg.FGPR(solver="exact").fit(fg.Federation.from_arrays({"a": (x, x[:, 0])}), progress=False)
        >>> path = model.save(tempfile.mkdtemp() + "/model")
        >>> fg.load(path)
        FGPR, fitted: 1 clients, without training data in memory
    """
    prepare()
    place = Path(folder)
    head = read_json(place / "model.json", "a fedgauss model")
    if head.get("format") != FORMAT:
        raise DataError(f"the model has format {head.get('format')!r}, this version of fedgauss reads {FORMAT!r}")
    try:
        content = (place / "arrays.safetensors").read_bytes()
        if hashlib.sha256(content).hexdigest() != head["sha256"]:
            raise ValueError("the arrays are not those that were saved")
        arrays = from_bytes(content, [Units])
        history = pl.read_parquet(place / "history.parquet")
        ledger = pl.read_parquet(place / "ledger.parquet")
        learned, made = _read(head, arrays, features)
        federation = None
        if (data := place / "training_data.safetensors").exists():
            stored = from_bytes(data.read_bytes(), [])
            federation = Federation(
                Client.of_matrices(both["X"], both["Y"], name, learned.inputs, learned.targets)
                for name, both in stored.items()
            )
    except OSError as error:
        raise DataError(f"the model is incomplete: {Path(error.filename or '').name} cannot be read") from error
    except (ValueError, KeyError, TypeError, IndexError, pl.exceptions.PolarsError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            "the model is incomplete: a file in it is cut short, changed or not ours. Save it again"
        ) from error
    model: Fitted[Any] = made(learned, history, ledger, federation)
    return model


def _read(head: dict[str, Any], arrays: dict[str, Any], features: Features | None) -> tuple[Learned, Any]:
    """What was learned, and the class of the fitted model."""
    if head["kind"] == FittedPrior.KIND:
        return LearnedPrior.from_files(head, arrays), CLASSES[head["method"]]
    if head["kind"] == FittedSums.KIND:
        return LearnedSums.from_files(head, arrays, features), FittedSums
    if head["kind"] == FittedLocal.KIND:
        return LearnedLocal.from_files(head, arrays, features), FittedLocal
    raise ValueError(head["kind"])
