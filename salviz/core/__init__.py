"Provide the torch-free basis of all other packages: maths, words, files, text, assets, runs and names."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
