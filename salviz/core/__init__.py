"What everything stands on, numpy only: maths, words, files, text, assets, runs, names."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
