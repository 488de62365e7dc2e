"""Pure maths on flat tensors: layout, atlas, search, staleness, seeds, messages."""
