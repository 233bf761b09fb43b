"""Generators of model outputs, one module per family."""
