"""Every method that a config can name. To add a method, add one line here."""

from typing import Annotated

from pydantic import Discriminator

from feddle.methods.ca2fl import Ca2flOptions
from feddle.methods.center import CenterOptions
from feddle.methods.convex import ConvexOptions
from feddle.methods.fadas import FadasOptions
from feddle.methods.fedasync import FedAsyncOptions
from feddle.methods.fedavg import FedAvgOptions
from feddle.methods.fedbuff import FedBuffOptions
from feddle.methods.feddf import FedDFOptions
from feddle.methods.feddle.method import FeddleOptions, FeddlePlusOptions
from feddle.methods.fedft import FedFTOptions
from feddle.methods.hfcl import HfclOptions
from feddle.methods.local import LocalOptions
from feddle.methods.median import MedianOptions
from feddle.options import choice

AnyMethod = (
    FeddleOptions
    | FeddlePlusOptions
    | FedBuffOptions
    | FedAvgOptions
    | FedAsyncOptions
    | Ca2flOptions
    | FadasOptions
    | CenterOptions
    | FedFTOptions
    | HfclOptions
    | FedDFOptions
    | ConvexOptions
    | MedianOptions
    | LocalOptions
)
Method = Annotated[AnyMethod, Discriminator("name"), choice("feddle")]
