"""Broken files from users raise an error with the line and the fix, and no data is dropped."""
import pandas as pd
import pytest

from salviz.data.texts import load_text, load_tokens
from salviz.core.files import read_csv
from salviz.data.rationales import load_rationales

rows = ''.join(f'text {i},{i % 2}\n' for i in range(40))
plain = f'text,label\n{rows}'
jsonl = '{"text": "fine", "label": 1}\n{"text": "dull", "label": 0}\n'*20

refused = { # file: (content, line or error, fix)
    'one-more.csv': ('text,label\n' + ''.join(f'{i},text {i},{i % 2}\n' for i in range(40)),
                     'line 2 has 3 fields, but the header has 2 (text, label) (and 39 more such rows)',
                     'name every column'),
    'once-more.csv': (plain + 'a,b,1\n', 'line 42 has 3 fields', 'put quotes around texts that contain commas'),
    'once-less.csv': (plain + 'alone\n', 'line 42 has 1 field, but the header has 2', 'name every column'),
    'comma-at-the-end.csv': (plain.replace('\n', ',\n').replace('label,', 'label'), 'line 2 has 3 fields',
                             'name every column'),
    'twice.csv': ('text,label,text\n' + rows.replace('\n', ',more\n'), "more than one column named 'text'", 'rename'),
    'open.csv': (plain + '"open,1\n' + rows, 'the row that begins on line 42 has an unclosed quote',
                 'double the quotes inside'),
    'open-and-closed.csv': (plain + '"open,1\n' + rows + 'so "closed",1\n',
                            'the row that begins on line 42 has an unclosed quote', 'double the quotes inside'),
    'inner.csv': ('text,label\n"he said "no", twice",1\n' + rows, 'the row that begins on line 2 has an unclosed quote',
                  'double the quotes inside'),
    'utf16.csv': (plain.encode('utf-16'), 'is in UTF-16', 'iconv -f UTF-16 -t UTF-8 utf16.csv'),
    'unmarked.csv': (plain.encode('utf-16-le'), 'line 1 has a zero byte', 'iconv -f UTF-16'),
    'latin.csv': (f'{plain}café,1\n'.encode('latin-1'), 'line 42 has the byte 0xe9', 'iconv -f WINDOWS-1252'),
    'zero.csv': (plain + 'a\0b,1\n', 'line 42 has a zero byte', 'save it as UTF-8'),
    'empty.csv': ('', 'is empty', ''), 'blank.csv': ('\n \n', 'is empty', ''),
    'header.csv': ('text,label\n', 'has a header but no rows', ''),
    'tabs.csv': (plain.replace(',', '\t'), 'the header is a single column', r"sep='\t'"),
    'semicolons.csv': (plain.replace(',', ';'), 'the header is a single column', "sep=';'"),
    'a.tsv': (plain, "has the extension '.tsv'", 'pandas.read_csv'),
    'a.json': (jsonl, "has the extension '.json'", 'with pandas'),
    'list.jsonl': (jsonl + '["fine", 1]\n', 'line 41 must be a JSON object, got list', 'one object per line'),
    'number.jsonl': ('1\n', 'line 1 must be a JSON object, got int', 'one object per line'),
    'array.jsonl': (f'[{jsonl[:28]}]', 'line 1 must be a JSON object, got list', 'pandas.read_json'),
    'pretty.jsonl': ('{\n "text": "a"\n}\n', 'line 1 is not JSON', 'one object per line'),
    'cut.jsonl': (jsonl + '{"text": "fi', 'line 41 is not JSON', 'one object per line'),
    'twice.jsonl': ('{"text": "a", "label": 1, "text": "b"}\n', "line 1 contains more than one entry for 'text'", ''),
    'deep.jsonl': ('['*100_000, 'line 1 is nested too deeply', ''), 'empty.jsonl': ('', 'is empty', ''),
    'latin.jsonl': (jsonl.replace('dull', 'café').encode('latin-1'), 'line 2 has the byte 0xe9', 'iconv'),
    'a.parquet': ('text,label', 'is not a Parquet file', ''), 'empty.txt': ('', 'is empty', ''),
    'latin.txt': ('a\ncafé'.encode('latin-1'), 'line 2 has the byte', 'iconv')}

@pytest.mark.parametrize('name', refused)
def test_broken_file_raises_with_its_line_and_the_fix(name, tmp_path):
    data, wrong, remedy = refused[name]
    path = tmp_path/name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    for source in (str(path), path, dict(train=path)):
        with pytest.raises(ValueError) as e: load_text(source, label=None if name.endswith('.txt') else 'label')
        message = str(e.value)
        assert str(path) in message and wrong in message and remedy in message and '\n' not in message
    if path.suffix != '.txt' and not name.startswith('a.'):
        with pytest.raises(ValueError, match=name): load_rationales(path)

@pytest.mark.parametrize('name, data',
                         [('windows.csv', plain.replace('\n', '\r\n')), ('mac.csv', plain.replace('\n', '\r')),
                                        ('mark.csv', '\ufeff' + plain), ('A.CSV', plain),
                                        ('blank-lines.csv', plain.replace('\n', '\n\n')),
                                        ('windows.jsonl', jsonl.replace('\n', '\r\n')),
                                        ('mark.jsonl', '\ufeff' + jsonl)])
def test_line_endings_and_byte_order_marks_do_not_matter(name, data, tmp_path):
    (tmp_path/name).write_bytes(data.encode())
    assert sum(len(part) for part in load_text(tmp_path/name).values()) == 40

def test_every_field_of_a_table_stays_as_written(tmp_path):
    texts = ['fine, really', 'she said "no", twice', 'two\nlines', 'NA', 'null', ' blank ', 'x'*200_000, 'a\u2028b',
             '7']
    frame = pd.DataFrame(dict(text=texts, label=[i % 2 for i in range(len(texts))]))
    frame.to_csv(tmp_path/'a.csv', index=False)
    read = read_csv(tmp_path/'a.csv')
    assert read['text'].tolist() == texts and read['label'].tolist() == [*map(str, frame['label'])]

def test_duplicate_columns_of_a_frame_raise():
    frame = pd.DataFrame([['one', 'two', 1], ['three', 'four', 0]]*20, columns=['text', 'text', 'label'])
    with pytest.raises(ValueError, match="text='text': train has 2 columns of that name; rename all but one"):
        load_text(frame)
    with pytest.raises(ValueError, match="more than one column named 'text'"): load_rationales(frame)

def test_half_of_a_surrogate_pair_raises_with_its_row():
    frame = pd.DataFrame(dict(text=['fine', 'a\ud83db']*20, label=[0, 1]*20), dtype=object)
    with pytest.raises(ValueError,
                       match=r"column 'text' has an unpaired surrogate, .*, in 20 rows of train "
                       r"\(first: row 1"):
        load_text(frame)

def test_folders_and_special_files_are_not_read(tmp_path):
    (tmp_path/'a.csv').mkdir()
    with pytest.raises(IsADirectoryError, match='is a folder'): load_text(tmp_path/'a.csv')
    with pytest.raises(FileNotFoundError, match='does not exist'): load_text(tmp_path/'b.csv')

def test_tagged_words_are_read_as_strictly(tmp_path):
    for data, message in (('café O\n'.encode('latin-1'), 'byte 0xe9'), (b'word\n', 'line 1 must be a word and its tag'),
                       (b'', 'is empty')):
        (tmp_path/'a.conll').write_bytes(data)
        with pytest.raises(ValueError, match=message): load_tokens(tmp_path/'a.conll')

@pytest.mark.parametrize('source', [{}, None, '', 5, []])
def test_rationales_without_a_source_raise(source):
    with pytest.raises(ValueError, match='source must be a name, a folder, a file, a data frame, a Dataset or'):
        load_rationales(source)
