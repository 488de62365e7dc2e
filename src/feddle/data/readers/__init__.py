"""Readers of the file formats that data sets come in."""
