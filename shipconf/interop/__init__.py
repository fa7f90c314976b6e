"""Formats of other tools, one module each, to records and back."""
