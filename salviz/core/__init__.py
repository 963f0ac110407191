"Provide the basis of all other packages, without torch: maths, words, files, text, assets, runs and names."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
