"""Getting files from official addresses and package registries."""
