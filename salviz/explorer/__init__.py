"The explorer in JupyterLab and as a page, its stills, bertviz's views."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
