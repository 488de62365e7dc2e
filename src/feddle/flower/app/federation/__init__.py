"""A template: edit model.py, client_data.py and server_data.py."""
