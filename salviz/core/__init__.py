"What everything stands on, numpy only: maths, words, files, text, assets, runs, names."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
