"""The rules, by theme. Importing this fills the table."""

from tilewright.stablehlo_import.rules import creation, elements, places, products, reductions, windows

__all__ = ["creation", "elements", "places", "products", "reductions", "windows"]
