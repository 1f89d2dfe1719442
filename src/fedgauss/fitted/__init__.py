"""Fitted models: what `fit` returns, and what `load` reads."""

from fedgauss.fitted.base import Fitted as Fitted
from fedgauss.fitted.base import Results as Results
from fedgauss.fitted.base import pool as pool
from fedgauss.fitted.loading import load as load
from fedgauss.fitted.prior import FittedPooled as FittedPooled
from fedgauss.fitted.prior import FittedPrior as FittedPrior
from fedgauss.fitted.prior import FittedSeparate as FittedSeparate
from fedgauss.fitted.sums import FittedLocal as FittedLocal
from fedgauss.fitted.sums import FittedSums as FittedSums
