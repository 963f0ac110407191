"Evidence as what can be drawn: numbers, words and captions, without a canvas."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
