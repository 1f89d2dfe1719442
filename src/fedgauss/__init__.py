"""Federated Gaussian processes: many clients learn one model, each keeps its data, each gets honest uncertainty."""

from fedgauss import metrics as metrics
from fedgauss.callbacks import Checkpoint as Checkpoint
from fedgauss.callbacks import EarlyStopping as EarlyStopping
from fedgauss.engines.local import Callback as Callback
from fedgauss.engines.local import Local as Local
from fedgauss.engines.local import Network as Network
from fedgauss.federation import Client as Client
from fedgauss.federation import Federation as Federation
from fedgauss.fitted import load as load
from fedgauss.gp import features as features
from fedgauss.gp import kernels as kernels
from fedgauss.gp.parameters import LogNormal as LogNormal
from fedgauss.models import FGPR as FGPR
from fedgauss.models import FedBNR as FedBNR
from fedgauss.models import FedSparseGP as FedSparseGP
from fedgauss.models import Pooled as Pooled
from fedgauss.models import Separate as Separate
from fedgauss.runtime import prepare as prepare
from fedgauss.schedules import Asynchronous as Asynchronous
from fedgauss.schedules import Sequential as Sequential
from fedgauss.schedules import Synchronous as Synchronous
