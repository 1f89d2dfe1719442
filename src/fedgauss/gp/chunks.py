"""Rows in pieces of one size, so that memory does not grow with their number and few shapes are ever compiled."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from fedgauss.gp.posterior import Prediction

_FEWEST_ROWS = 64
"""In a piece, unless fewer are asked for: below this, work costs less than another compilation."""


def chunks(size: int, *arrays: Float[np.ndarray, "N ..."]) -> Iterator[tuple[Float[np.ndarray, "B ..."], ...]]:
    """Pieces of `size` rows of each array, each piece led by a mask: 1 for a row, 0 for padding.

    Args:
        size: Rows in a piece, B. Where there are fewer rows, the next power of two will do.
        arrays: All of the same length. The last piece is padded with zeros.

    Example:
        >>> [mask.tolist() + x.tolist() for mask, x in chunks(2, np.array([5.0, 6.0, 7.0]))]
        [[1.0, 1.0, 5.0, 6.0], [1.0, 0.0, 7.0, 0.0]]
    """
    size = min(size, max(_FEWEST_ROWS, 1 << (len(arrays[0]) - 1).bit_length()))
    for start in range(0, len(arrays[0]), size):
        pieces = [array[start : start + size] for array in arrays]
        missing = size - len(pieces[0])
        mask = (np.arange(size) < size - missing).astype(np.float64)
        yield mask, *(np.pad(piece, [(0, missing)] + [(0, 0)] * (piece.ndim - 1)) for piece in pieces)


def predict_in_chunks(
    predict: Callable[[Any], tuple[Float[Array, "B *P"], Float[Array, "B *P"]]],
    X: Float[np.ndarray, "T ..."],
    size: int,
) -> Prediction:
    """Mean and variance of f at every row of `X`, piece by piece; variances that rounding made negative become 0.

    One column a target, or none where `predict` gives vectors.

    Args:
        predict: The mean and variance at one piece of `size` rows.
        X: Test inputs.
        size: Rows in a piece, B, as for `chunks`.

    Example:
        >>> predict_in_chunks(lambda X: (X[:, 0], -X[:, 0]), np.ones((3, 1)), size=2)
        Prediction(mean=array([1., 1., 1.]), variance=array([0., 0., 0.]), clamped=3)
    """
    parts = [predict(piece) for _, piece in chunks(size, X)] or [predict(X)]
    mean, variance = (np.concatenate(column)[: len(X)] for column in zip(*parts, strict=True))
    return Prediction(mean, np.maximum(variance, 0.0), int(np.sum(variance < 0.0)))
