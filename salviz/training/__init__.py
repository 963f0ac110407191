"The trainer, what it feeds and records, training live in a notebook, studies."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
