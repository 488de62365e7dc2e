"""A federation to start from: change the model, the clients' data and the server's data, a file each."""
