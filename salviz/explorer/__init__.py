"The explorer in JupyterLab and as a page, static images of it, bertviz's views."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
