"Texts of a figure that overlap, reach into another plot, or leave the page, from bounding boxes in points"
import numpy as np
from matplotlib.text import Text


def texts_of(fig):
    "Return all visible texts of `fig`"
    return [o for o in fig.findobj(Text) if o.get_visible() and o.get_text().strip()
            and (o.axes is None or o.axes.axison or o in o.axes.texts)]


def boxes(fig):
    "Return the texts of `fig` and their boxes in points: left, bottom, right, top"
    renderer = prepared(fig)
    seen = texts_of(fig)
    return [o.get_text() for o in seen], np.array([o.get_window_extent(renderer).extents
                                                   for o in seen]).reshape(-1, 4)/4


def prepared(fig):
    "Return the renderer of `fig` with four dots per point, which resolves a quarter of a point"
    fig.set_dpi(288)
    fig.draw_without_rendering()
    return fig.canvas.get_renderer()


def shared(a, b):
    "Return the overlap of boxes `a` [n, 4] and `b` [m, 4] in points, the smaller of width and height [n, m]"
    return np.minimum(*(np.minimum(a[:, None, i + 2], b[None, :, i + 2]) - np.maximum(a[:, None, i], b[None, :, i])
                        for i in (0, 1)))


def overlaps(fig) -> list:
    "Return pairs of texts whose boxes overlap by more than a quarter of a point in both directions"
    texts, b = boxes(fig)
    return [(texts[i], texts[j]) for i, j in np.argwhere(np.triu(shared(b, b) > .25, 1))]


def covered(fig, slack=.75) -> list:
    """Return texts and legend samples (axes without frame, at most 16 points wide) in the area of a plot to which they
    do not belong, each with that plot's label"""
    renderer, s = prepared(fig), getattr(fig, 'scale', 1.)
    plots = [o for o in fig.axes if o.axison]
    areas = np.array([o.get_window_extent(renderer).extents for o in plots]).reshape(-1, 4)/4
    samples = [o for o in fig.axes if not o.axison and o.get_window_extent(renderer).width/4 <= 16*s]
    owner = {id(t): o for o in fig.axes for t in o.findobj(Text)} # a tick label has no reference to its axes
    things = [(o.get_text(), owner.get(id(o)), o.get_window_extent(renderer).extents/4)
              for o in texts_of(fig)] + [('sample of a legend', o, o.get_window_extent(renderer).extents/4)
                                         for o in samples]
    if not things or not plots: return []
    hit = shared(np.array([o[2] for o in things]), areas) > slack*s
    return [(things[i][0], plots[j].get_xlabel() or plots[j].get_ylabel() or f'plot {j}') for i, j in np.argwhere(hit)
            if things[i][1] is not plots[j]]


def outside(fig) -> list:
    "Return texts that leave the page"
    texts, b = boxes(fig)
    width, height = fig.get_size_inches()*72
    out = (b[:, 0] < -.1) | (b[:, 1] < -.1) | (b[:, 2] > width + .1) | (b[:, 3] > height + .1)
    return [t for t, o in zip(texts, out) if o]


def check_legible(fig):
    "Check that no text leaves the figure, or overlaps another text or a plot to which it does not belong"
    assert not outside(fig), outside(fig)
    assert not overlaps(fig), overlaps(fig)
    assert not covered(fig), covered(fig)
