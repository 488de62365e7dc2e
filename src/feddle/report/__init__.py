"""Reading run folders and showing them to people."""
