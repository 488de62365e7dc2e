from feddle.core.atlas import Atlas as Atlas
from feddle.core.errors import FeddleError as FeddleError
from feddle.core.layout import Layout as Layout
from feddle.core.layout import Weights as Weights
from feddle.core.messages import Arrival as Arrival
from feddle.core.messages import Job as Job
from feddle.core.messages import Merged as Merged
from feddle.core.messages import Update as Update
from feddle.methods.strategy import Strategy as Strategy
from feddle.report.page import write_report as write_report
from feddle.run.folder import run_config as run_config
from feddle.run.load import load_config as load_config
from feddle.run.own import open_data as open_data
from feddle.run.plan import Config as Config
from feddle.run.run import Run as Run
from feddle.run.simulate import by_client as by_client
from feddle.run.simulate import by_dirichlet as by_dirichlet
from feddle.run.simulate import simulate as simulate
from feddle.run.trained import load_model as load_model
from feddle.run.trained import predict as predict
from feddle.version import __version__ as __version__

__all__: list[str]
