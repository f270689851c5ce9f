"""The rules, by theme. Importing this fills the table."""

from tilewright.torch_import.rules import attention, creation, norms, pointwise, products, reductions, views, windows

__all__ = ["attention", "creation", "norms", "pointwise", "products", "reductions", "views", "windows"]
