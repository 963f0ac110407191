"Models: loaded, made from scratch, their attention observed, their input corrupted."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
