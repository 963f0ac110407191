"""Writes golden.json: small inputs, and the outputs that numpy, torch and JavaScript must all return.

The code is slow on purpose: plain Python floats and loops that follow the equations, without salviz. NaN (undefined) is
null in the file.
Run `python tests/make_golden.py` after adding a case; numbers are rounded to 12 digits.
"""
import json
import math
import random
from fractions import Fraction
from pathlib import Path

PATH = Path(__file__).with_name('golden.json')


def kept(n, p):
    "Return floor(n(1-p)) in exact fractions; p is the decimal number as written"
    return math.floor(n*(1 - Fraction(str(p))))


def released_low_row(row, values, allowed, p):
    """Return the authors' low region: strictly below the entry with floor(pn) of the sorted `values` before it, if
    there is one"""
    below = math.floor(len(values)*Fraction(str(p)))
    return [bool(a) and (below == len(values) or v < values[below]) for v, a in zip(row, allowed)]


def candidate_row(row, allowed, p, region):
    """Return AD-DROP eq. 6 for one row: sort the n allowed entries and keep the k lowest; the others and those equal to
    them are candidates"""
    values = sorted(v for v, a in zip(row, allowed) if a)
    if region == 'low_released': return released_low_row(row, values, allowed, p)
    n, k = len(values), kept(len(values), p)
    if k == n: return [False]*len(row)
    if region == 'high': return [bool(a) and v >= values[k] for v, a in zip(row, allowed)]
    return [bool(a) and v <= values[n - k - 1] for v, a in zip(row, allowed)]


def discard_candidates(attribution, allowed, p, region):
    return [candidate_row(r, a, p, region) for r, a in zip(attribution, allowed)]


def pattern_matrix(name, real, occurs=None, boundary='uniform', multiple='uniform'):
    "Return the pattern of attention guidance, section 3.2; next, previous and first are among the real tokens"
    size, positions = len(real), [i for i, r in enumerate(real) if r]
    P = [[0.]*size for _ in range(size)]
    goals = [i for i in positions if occurs[i]] if occurs is not None else positions
    if not goals: return None
    for place, i in enumerate(positions):
        if name == 'first': P[i][positions[0]] = 1.
        elif name in ('delim', 'period'):
            for j in goals: P[i][j] = 1/len(goals) if multiple == 'uniform' else 1.
        else:
            other = place + (1 if name == 'next' else -1)
            if 0 <= other < len(positions): P[i][positions[other]] = 1.
            elif boundary == 'uniform':
                for j in positions: P[i][j] = 1/len(positions)
    return P


def saliency_target(saliency, allowed, top_fraction, binarised):
    """Return SalLM's target: equal weights on the max(1, ceil(top_fraction n)) most positive tokens, or the normalised
    positive part"""
    places = [i for i, a in enumerate(allowed) if a]
    target = [0.]*len(saliency)
    if binarised:
        k = max(1, math.ceil(len(places)*Fraction(str(top_fraction))))
        for i in sorted(places, key=lambda i: (-saliency[i], i))[:k]: target[i] = 1.
    else:
        for i in places: target[i] = max(0., saliency[i])
    total = math.fsum(target)
    return [t/total if total else 0. for t in target]


def distribution(x, counts):
    total = math.fsum(v for v, c in zip(x, counts) if c)
    return [v/total for v, c in zip(x, counts) if c] if total else None


def entropy(row, allowed):
    p = distribution(row, allowed)
    return None if p is None else math.fsum(-v*math.log(v) for v in p if v > 0)


def kl(p, q, counts):
    p, q = distribution(p, counts), distribution(q, counts)
    return None if p is None or q is None else math.fsum(a*math.log(a/b) for a, b in zip(p, q) if a > 0)


def ranks(x):
    "Return ranks; equal values get the mean of their ranks"
    return [sum(v < w for v in x) + (sum(v == w for v in x) + 1)/2 for w in x]


def spearman(a, b, counts):
    a, b = (ranks([v for v, c in zip(x, counts) if c]) for x in (a, b))
    if len(a) < 2: return None
    ma, mb = math.fsum(a)/len(a), math.fsum(b)/len(b)
    saa, sbb = math.fsum((x - ma)**2 for x in a), math.fsum((x - mb)**2 for x in b)
    return math.fsum((x - ma)*(y - mb) for x, y in zip(a, b))/math.sqrt(saa*sbb) if saa and sbb else None


def top_overlap(a, b, k, counts):
    places = [i for i, c in enumerate(counts) if c]
    best = [set(sorted(places, key=lambda i: (-x[i], i))[:k]) for x in (a, b)]
    if len(places) > k and any(len({x[i] for i in places}) == 1 for x in (a, b)): return None
    return len(best[0] & best[1])/len(best[0]) if places else None


def pattern_fraction(attention, pattern):
    "Return the mean over the rows that the pattern guides of the attention fraction on its positions, for one head"
    shares = []
    for row, guide in zip(attention, pattern):
        positions = [g > 0 for g in guide]
        if not any(positions) or all(positions) or not math.fsum(row): continue
        shares.append(math.fsum(a for a, o in zip(row, positions) if o)/math.fsum(row))
    return math.fsum(shares)/len(shares) if shares else None


def product(X, Y):
    return [[math.fsum(X[i][k]*Y[k][j] for k in range(len(Y))) for j in range(len(Y[0]))] for i in range(len(X))]


def rollout(attention, residual):
    """Return the rollout: mean over heads, plus a fraction of the identity, rows normalised; later layers multiply from
    the left"""
    out = None
    for layer in attention:
        n = len(layer[0])
        M = [[(1 - residual)*math.fsum(head[i][j] for head in layer)/len(layer) + residual*(i == j) for j in range(n)]
             for i in range(n)]
        M = [[v/math.fsum(row) for v in row] for row in M]
        out = M if out is None else product(M, out)
    return out


def softmax_row(rng, n, allowed):
    e = [math.exp(rng.gauss(0, 1.5)) if a else 0. for a in allowed[:n]]
    return [round(v/sum(e), 6) for v in e]


def cases():
    rng = random.Random(7)
    # few distinct values, so that rows are full of ties; three decimals, so that float32 sees the same ties
    coarse = lambda n: [rng.choice([-.5, -.125, 0., .25, 1., 3.]) for _ in range(n)]
    fine = lambda n: [round(rng.gauss(0, 1), 3) for _ in range(n)]
    bits = lambda n: [rng.random() < .75 for _ in range(n)]
    out = {name: [] for name in ('retained_count', 'discard_candidates', 'pattern_matrix', 'saliency_target',
                                 'entropy', 'kl', 'spearman', 'top_overlap', 'rollout')}
    shares = [.1, .2, .3, .4, .5, .6, .7, .8, .9]
    for p in shares:
        out['retained_count'].append(dict(n=[*range(1, 41), 128, 512], p=p,
                                      expected=[kept(n, p) for n in [*range(1, 41), 128, 512]]))
    for i, p in enumerate([0., *shares, 1.]):
        n, draw, region = rng.randint(1, 12), (fine, coarse)[i % 2], ('high', 'low')[i//2 % 2]
        B = [draw(n) for _ in range(n)]
        for allowed in ([[True]*n]*n, [bits(n)]*n, [[j <= k for j in range(n)] for k in range(n)]):
            for side in (region,) if region == 'high' else (region, 'low_released'):
                expected = discard_candidates(B, allowed, p, side)
                case = dict(attribution=B, allowed=allowed, p=p, region=side, expected=expected)
                out['discard_candidates'].append(case)
    reals = [[True]*5, [True]*4 + [False]*3, [False]*2 + [True]*4, [False, True, False],
             [True, False, True, True, False]]
    for real in reals:
        for boundary in ('uniform', 'zero'):
            for name in ('next', 'prev', 'first'):
                out['pattern_matrix'].append(dict(name=name, real=real, occurs=None, boundary=boundary,
                                                  multiple='uniform',
                                                  expected=pattern_matrix(name, real, boundary=boundary)))
        for occurs in (bits(len(real)), [False]*len(real)):
            for multiple in ('uniform', 'indicator'):
                out['pattern_matrix'].append(dict(name='period', real=real, occurs=occurs, boundary='uniform',
                                                  multiple=multiple,
                                                  expected=pattern_matrix('period', real, occurs, multiple=multiple)))
    for n, share in ((1, .1), (9, .1), (10, .1), (11, .1), (30, .1), (12, .25), (7, 1.)):
        for draw in (fine, coarse):
            s, allowed = draw(n), bits(n)
            for counts in ([True]*n, allowed, [False]*n):
                for binarised in (True, False):
                    out['saliency_target'].append(dict(saliency=s, allowed=counts, top_fraction=share,
                                                       binarised=binarised,
                                                       expected=saliency_target(s, counts, share, binarised)))
    for n in (1, 2, 5, 8):
        for _ in range(3):
            counts, everything, nothing = bits(n), [True]*n, [False]*n
            row, other = softmax_row(rng, n, everything), softmax_row(rng, n, everything)
            spiked = softmax_row(rng, n, bits(n)[:-1] + [True])
            out['entropy'] += [dict(attention=r, allowed=c, expected=entropy(r, c)) for r in (row, spiked)
                               for c in (everything, counts, nothing)]
            out['kl'] += [dict(p=p, q=other, counts=c, expected=kl(p, other, c)) for p in (row, spiked)
                          for c in (everything, counts, nothing)]
            for draw in (fine, coarse):
                a, b = draw(n), draw(n)
                for c in (everything, counts):
                    out['spearman'].append(dict(a=a, b=b, counts=c, expected=spearman(a, b, c)))
                    out['top_overlap'].append(dict(a=a, b=b, k=2, counts=c, expected=top_overlap(a, b, 2, c)))
    flat, steps, odd = [2.]*4, [0., 1., 2., 3.], [True, False, True, True]
    for a, b, k, c in ((flat, steps, 2, [True]*4), (steps, flat, 2, [True]*4), (flat, steps, 4, [True]*4),
                       ([1., 5., 1., 1.], steps, 2, odd), (flat, steps, 3, odd)):
        out['top_overlap'].append(dict(a=a, b=b, k=k, counts=c, expected=top_overlap(a, b, k, c)))
    for layers, heads, n, residual in ((1, 1, 2, .5), (3, 2, 4, .5), (2, 3, 5, 0.), (4, 2, 3, .9)):
        A = [[[softmax_row(rng, n, [True]*n) for _ in range(n)] for _ in range(heads)] for _ in range(layers)]
        out['rollout'].append(dict(attention=A, residual=residual, expected=rollout(A, residual)))
    out['pattern_fraction'] = []
    for n in (1, 2, 5, 8):
        A, dead = [softmax_row(rng, n, bits(n)[:-1] + [True]) for _ in range(n)], [[0.]*n for _ in range(n)]
        weights = [[float(a)/(1 + i) for a in bits(n)] for i in range(n)]
        for P in (pattern_matrix('next', [True]*n), pattern_matrix('prev', [True]*n, boundary='zero'),
                  pattern_matrix('first', [True]*n), weights, dead, [[1.]*n]*n):
            out['pattern_fraction'].append(dict(attention=A, pattern=P, expected=pattern_fraction(A, P)))
        out['pattern_fraction'].append(dict(attention=A[:-1] + [[0.]*n], pattern=weights,
                                         expected=pattern_fraction(A[:-1] + [[0.]*n], weights)))
    return out


def rounded(x):
    if isinstance(x, float): return round(x, 12)
    if isinstance(x, dict): return {k: rounded(v) for k, v in x.items()}
    return [rounded(v) for v in x] if isinstance(x, list) else x


def text():
    "Return the content of the file: one case per line"
    body = ',\n'.join(f'"{name}": [\n' + ',\n'.join(json.dumps(rounded(c), allow_nan=False) for c in cs) + '\n]'
                      for name, cs in cases().items())
    return '{\n' + body + '\n}\n'


if __name__ == '__main__': PATH.write_text(text())
