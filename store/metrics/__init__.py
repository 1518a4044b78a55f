"""The broker's numbers for a metrics server."""
