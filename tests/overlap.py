"Which texts of a figure touch each other or leave it: bounding boxes, in points."
import numpy as np
from matplotlib.text import Text


def texts_of(fig):
    "All texts of `fig` that a reader can see"
    return [o for o in fig.findobj(Text) if o.get_visible() and o.get_text().strip() and (o.axes is None or o.axes.axison or o in o.axes.texts)]


def boxes(fig):
    "The texts of `fig` and their boxes in points: left, bottom, right, top"
    fig.set_dpi(288) # fine enough for a quarter of a point
    renderer = fig.canvas.get_renderer()
    fig.draw_without_rendering()
    seen = texts_of(fig)
    return [o.get_text() for o in seen], np.array([o.get_window_extent(renderer).extents for o in seen]).reshape(-1, 4)/4


def overlaps(fig) -> list:
    "Pairs of texts whose boxes share more than a quarter of a point in both directions"
    texts, b = boxes(fig)
    across = np.minimum(b[:, None, 2], b[None, :, 2]) - np.maximum(b[:, None, 0], b[None, :, 0])
    along = np.minimum(b[:, None, 3], b[None, :, 3]) - np.maximum(b[:, None, 1], b[None, :, 1])
    return [(texts[i], texts[j]) for i, j in np.argwhere(np.triu((across > .25) & (along > .25), 1))]


def outside(fig) -> list:
    "Texts that leave the page"
    texts, b = boxes(fig)
    width, height = fig.get_size_inches()*72
    out = (b[:, 0] < -.1) | (b[:, 1] < -.1) | (b[:, 2] > width + .1) | (b[:, 3] > height + .1)
    return [t for t, o in zip(texts, out) if o]


def check_legible(fig):
    "No text leaves the figure, none overlaps another"
    assert not outside(fig), outside(fig)
    assert not overlaps(fig), overlaps(fig)
