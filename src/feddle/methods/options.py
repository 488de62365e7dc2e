"""Every method that a config can name. To add a method, add one line here."""

from typing import Annotated

from pydantic import Discriminator, Tag

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
from feddle.methods.imported import ImportedMethod
from feddle.methods.local import LocalOptions
from feddle.methods.median import MedianOptions
from feddle.options import choice, named_or_imported

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
NamedMethod = Annotated[AnyMethod, Discriminator("name")]
Method = Annotated[
    Annotated[NamedMethod, Tag("named")] | Annotated[ImportedMethod, Tag("imported")],
    named_or_imported,
    choice("feddle"),
]
