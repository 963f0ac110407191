"Texts, signals and rationales as data sets."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
