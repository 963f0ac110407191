"""The cache of a long computation survives flipped bits and concurrent processes."""
import warnings

import numpy as np
import pytest

from salviz.core.part_cache import PartCache
from salviz.core.run_files import write_whole

@pytest.mark.parametrize('every', [5, pytest.param(1, marks=pytest.mark.slow)])
def test_flipped_bits_neither_stop_a_computation_nor_change_its_numbers(tmp_path, every):
    "Every fifth bit is in each byte at least once, at all eight places of a byte"
    kept, x = PartCache(tmp_path/'k', {}), np.arange(3.)
    def part(): return kept.part(dict(first=0), lambda: dict(x=x))['x']
    part()
    file, = (tmp_path/'k').glob('*.npz')
    whole = file.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for bit in range(0, 8*len(whole), every):
            flipped = bytearray(whole)
            flipped[bit//8] ^= 1 << bit%8
            file.write_bytes(flipped)
            np.testing.assert_array_equal(part(), x)

def test_two_processes_can_share_a_cache(tmp_path, monkeypatch):
    def slowly(path, data): # another process has started to write the same part
        path.parent.mkdir()
        (path.parent/f'.{path.name}.0a1b2c3d.tmp').write_bytes(data)
        monkeypatch.undo()
        PartCache(tmp_path/'k', dict(n=1))
        write_whole(path, data)
    monkeypatch.setattr('salviz.core.part_cache.write_whole', slowly)
    assert PartCache(tmp_path/'k', dict(n=1)).part(dict(i=0), lambda: dict(x=np.ones(1)))['x'] == 1
