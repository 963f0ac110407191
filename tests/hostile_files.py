"Files with which a student could block a class, or attack a teacher's terminal or spreadsheet"
import json
import os
import random
from copy import deepcopy

from salviz.core.untrusted import largest
from salviz.course.marks import _sheet_json, checked_sheet, mark_set, sheet_code

of = mark_set(['the film is not bad .', 'a dull story that does not move', 'warm and funny'], most=2)
nasty = '\x1b]0;owned\x07\x1b[2J\x1b[31m=1+1\r=cmd|\' /C calc\'!A1\r\n@SUM(A1)\u202egpj.exe\u2028\x9b1m'
odd = [None, True, False, 0, -1, .5, 1e308, 10**300, '', 'x', '=1+1', nasty, '\ud800', 'x'*10_000, '__proto__',
       'constructor', {}, {'a': {}}, {'value': 0}, [], [[]], [None], ['']*50, [1e9], [10**20], [-1], [0, 0], [.5],
       [[[[0]]]], list(range(200))]

def entry(kind='words', value=(0, 1), **more):
    "Return a valid entry of an answer file"
    first = dict(value=value if kind in ('number', 'slope', 'choice') else list(value), confidence='sure', why='so',
                 time='2026-01-01T10:00:00Z')
    return dict(id='', kind=kind, state='committed', first=first, second=None, revealed=None, skipped=False) | more

def answers(nickname, entries=None):
    usual = {'1.words': entry(), '1.class': entry('choice', 1), '1.row': dict(kind='check', passed=True)}
    return dict(salviz='answers', version=1, nickname=nickname, lesson='1', set='', written='',
                entries=usual | (entries or {}))

def sheet(nickname): return checked_sheet(of, nickname, [[1, 0, 0, 0, 0, 0], None, [0, 0, 1]])

def marks(nickname): return json.loads(_sheet_json(of, sheet(nickname)))

def class_answers():
    of_class = dict(id='', kind='choice', first=[0, 1], second=[1, 1], confidence=['sure', 'guess'])
    return dict(salviz='class-answers', version=1, entries={'1.class': of_class, '1.words': of_class | dict(
        kind='words', first=[[0], [1, 2]], second=[[0], [1]])})

def places(x, path=()):
    "Yield all places within JSON"
    yield path
    for key, part in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ():
        yield from places(part, (*path, key))

def changed(x, path, value):
    "Return a copy of `x` with `value` at the place `path`"
    if not path: return value
    x = place = deepcopy(x)
    for key in path[:-1]: place = place[key]
    place[path[-1]] = value
    return x

def texts():
    "Return {name: text} of files close to the size limit, each of which takes a careless reader minutes or stops it"
    return _codes() | _json() | _marks() | _answers()

_n = largest - 2000 # characters

def _codes():
    start, code = 'marks1:a:', sheet_code(of, sheet('ann'))
    return {'blanks': 'marks1:' + ' '*_n, 'blanks behind a name': start + ' '*_n, 'tabs': 'marks1:' + '\t '*(_n//2),
            'beginnings': 'marks1:'*(_n//7), 'beginnings with names': 'marks1:a: '*(_n//10),
            'no colon': 'marks1'*(_n//6), 'dashes': start + '1-'*(_n//2), 'dashes and blanks': start + '1- '*(_n//3),
            'digits': 'marks' + '1'*_n, 'one long code': start + '1'*_n,
            'groups': start + ('1'*1999 + '-')*(_n//2000), 'many codes': (code + '\n')*(_n//(len(code) + 1)),
            'wrong codes': 'marks1:a:1\n'*(_n//11)}

def _json():
    return {'lines': '\n'*_n, 'escapes': '\x1b]'*(_n//2), 'one escape': '\x1b[' + '0'*_n, 'open lists': '['*_n,
            'deep lists': '['*(_n//2) + ']'*(_n//2), 'deep objects': '{"a":'*(_n//6) + '1' + '}'*(_n//6),
            'wide lists': '[' + '[],'*(_n//3) + '0]', 'a number': '9'*_n, 'too large a number': '{"salviz": 1e999}',
            'a string': f'"{"x"*_n}"', 'quotes': '"'*_n, 'backslashes': '"' + '\\'*_n,
            'keys': '{' + ','.join(f'"{i}":0' for i in range(_n//11)) + '}'}

def _marks():
    accents = marks('a') | dict(nickname='a' + '\u0301\u0316'*(_n//5))
    return {'accents': json.dumps(accents, ensure_ascii=False),
            'marks of one': json.dumps(marks('a') | dict(marks=[0]*(_n//3))),
            'flags': json.dumps(marks('a') | dict(marks=[[0]*(_n//4), None, None]))}

def _answers():
    def file(**entries): return json.dumps(answers('a', {name.replace('_', '1.'): x for name, x in entries.items()}))
    reason = entry()['first'] | dict(why='=1+1\r'*(_n//8))
    many_votes = changed(class_answers(), ('entries', '1.class', 'first'), [0]*(_n//4))
    return {'entries': file(**{f'_{i}': entry() for i in range(_n//220)}), 'names': file(**{'x'*_n: entry()}),
            'places': file(_words=entry(value=range(_n//8))), 'reason': file(_words=entry(first=reason)),
            'check': file(_row=dict(kind='check', passed=[0]*(_n//4))), 'class': json.dumps(many_votes),
            'twice': '{"salviz":"answers",' + '"entries":{},'*(_n//13) + '"version":1}',
            'no number': file(_number=entry('number', float('nan')))}

def contents(draw, count):
    "Yield `count` contents of files as (kind, bytes): JSON with odd values in random places, and damaged texts"
    for i in range(count):
        wholes = dict(answers=answers(f'h{i}'), marks=marks(f'h{i}')) | {'class': class_answers()}
        kind, whole = draw.choice([*wholes.items()])
        damage = draw.choice(['odd', 'odd', 'odd', 'cut', 'bytes', 'encoding', 'twice'])
        if damage == 'odd':
            for _ in range(draw.randint(1, 3)):
                whole = changed(whole, draw.choice(list(places(whole))), draw.choice(odd))
            yield kind, json.dumps(whole, ensure_ascii=draw.random() < .5).encode('utf-8', 'surrogatepass')
            continue
        text = json.dumps(whole).encode()
        if damage == 'cut': yield kind, text[:draw.randrange(len(text))]
        elif damage == 'bytes': yield kind, bytes(draw.randrange(256) if draw.random() < .02 else c for c in text)
        elif damage == 'encoding':
            yield kind, text.decode().replace('so', 'só').encode(draw.choice(['utf-16', 'latin-1', 'utf-32']))
        else: yield kind, text.replace(b'"version":', b'"version": [], "nickname": 3, "entries": 3, "version":')

def write(folder, count=0, seed=0):
    "Fill `folder` with hostile files, `count` of them random, and return their names"
    draw = random.Random(seed)
    for name, text in texts().items(): (folder/f'answers-{name}.json').write_text(text, encoding='utf-8')
    for i, (kind, data) in enumerate(contents(draw, count)):
        named = draw.choice(['', '', '=1+1', '\x1b[31m', '\u202e', '-\udcff', 'é'*60])
        (folder/f'{kind if kind == "marks" else "answers"}-{named}{i}.json').write_bytes(data)
    write_special(folder)
    return sorted(path.name for path in folder.iterdir())

def write_special(folder):
    "Create entries in `folder` that cannot be read as files"
    (folder/'answers-folder.json').mkdir()
    os.mkfifo(folder/'answers-pipe.json')
    (folder/'answers-loop.json').symlink_to(folder/'answers-loop.json')
    (folder/'answers-zero.json').symlink_to('/dev/zero')
    (folder/'answers-none.json').symlink_to(folder/'nothing')
    (folder/'answers-locked.json').write_text('{')
    (folder/'answers-locked.json').chmod(0)
