"Evidence as what can be drawn: numbers, words and captions, without a canvas."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
