"""Models, data sets, partitions, local training, objectives and evaluation."""
