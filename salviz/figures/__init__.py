"Draw many kinds of figures for papers, and write coloured sentences as LaTeX."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
