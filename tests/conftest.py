"""Settings of every test process."""

import torch

# As in a run. With more, threads that wait for each other slow a loaded machine down, and small models gain nothing.
torch.set_num_threads(1)
