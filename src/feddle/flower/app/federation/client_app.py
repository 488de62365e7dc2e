"""The ClientApp; there is no need to change it."""

from feddle.flower import client_app
from federation.client_data import client_data
from federation.model import make_model

app = client_app(make_model, client_data)
