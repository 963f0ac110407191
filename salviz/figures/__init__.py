"Draw figures for papers by kind, and write coloured sentences as LaTeX."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
