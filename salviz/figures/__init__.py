"Views on paper: figures by kind, their drawing, sentences for LaTeX."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
