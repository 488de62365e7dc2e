"""Flower's simulation engine (Ray): `flower_sim.py FOLDER OUT`."""

import sys
import time
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import ADAM, Clock, Workload, load, train, workbench, write_result

ACTORS = 2


class Scheduled(FedAvg):
    """Flower's FedAvg with a fixed schedule of nodes and without evaluation on clients."""

    def __init__(self, schedule: list[list[int]]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.schedule = schedule

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """One message for each node of this round."""
        content = RecordDict({"arrays": arrays, "config": config})
        nodes = self.schedule[server_round - 1]
        return [Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node) for node in nodes]


def client_app(folder: str) -> ClientApp:
    """A client, which reports its number and trains."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        workbench(folder)
        who = {"client": int(context.node_config["partition-id"])}
        return Message(content=RecordDict({"who": MetricRecord(who)}), reply_to=message)

    @app.train()
    def fit(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        workload, model = load(folder), workbench(folder)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = workload.client(int(context.node_config["partition-id"]))
        train(model, images, labels)
        metrics = MetricRecord({"num-examples": len(labels)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(folder: str, out: str) -> ServerApp:
    """The server, which runs the rounds after Ray has started and its actors have loaded the data."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001
        workload = load(folder)
        nodes = _nodes(grid, workload)
        strategy = Scheduled([[nodes[client] for client in clients] for clients in workload.sampled.tolist()])
        model = workload.model()
        initial = ArrayRecord(model.state_dict())
        with Clock() as clock:
            result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=workload.rounds)
        model.load_state_dict(result.arrays.to_torch_state_dict())
        note = f"Ray, num_cpus=1 a client: {ACTORS} actors of one thread, data and model kept in the actors, {ADAM}"
        write_result(out, clock, workload.accuracy(model), threads=ACTORS, note=note)

    return app


def _nodes(grid: Grid, workload: Workload) -> dict[int, int]:
    """The node of each client, from a query to all nodes. During the query, the actors load the data."""
    while len(nodes := list(grid.get_node_ids())) < len(workload.clients):
        time.sleep(0.1)
    empty = RecordDict({"config": ConfigRecord()})
    queries = [Message(content=empty, message_type=MessageType.QUERY, dst_node_id=node) for node in nodes]
    replies = grid.send_and_receive(queries, timeout=300)
    return {int(reply.content["who"]["client"]): reply.metadata.src_node_id for reply in replies}


def main() -> None:
    """Run the engine on this machine's loopback."""
    folder, out = sys.argv[1], sys.argv[2]
    run_simulation(
        server_app=server_app(folder, out),
        client_app=client_app(folder),
        num_supernodes=len(load(folder).clients),
        backend_config={
            "init_args": {"num_cpus": ACTORS, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
