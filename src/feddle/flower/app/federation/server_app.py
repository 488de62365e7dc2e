"""The ServerApp; there is no need to change it."""

from feddle.flower import server_app
from federation.model import make_model
from federation.server_data import held_out_data, server_data

app = server_app(make_model, server_data, held_out_data)
