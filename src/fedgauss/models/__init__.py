"""The doors: settings objects with a `fit`."""

from fedgauss.models.ends import Pooled as Pooled
from fedgauss.models.ends import Separate as Separate
from fedgauss.models.fedbnr import FedBNR as FedBNR
from fedgauss.models.fgpr import FGPR as FGPR
from fedgauss.models.fitting import plain_settings as plain_settings
from fedgauss.models.sparse import FedSparseGP as FedSparseGP
