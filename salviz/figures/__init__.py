"Views on paper: figures by kind, their drawing, sentences for LaTeX."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
