"""A client's data, on the node. In this example each node has its own share of the digits, with uneven classes."""

from flwr.app import Context

from feddle.data import datasets
from feddle.data.examples import Examples, Images, Selection
from feddle.data.partition import dirichlet


def client_data(context: Context) -> Examples:
    """The share that the node's config selects: `--node-config 'partition-id=0 num-partitions=3'`."""
    return share(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


def share(number: int, shares: int) -> Examples:
    """One of several uneven shares of the training images."""
    digits = datasets.load("digits", quiet=True)
    partition = dirichlet(digits.train_labels, shares, alpha=0.5, seed=0)
    return Selection(Images(digits.train_images, digits.train_labels, channels=1), partition[number])
