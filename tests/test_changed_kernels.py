"""scripts/changed_kernels.py finds the kernels that changed."""

from __future__ import annotations

import shutil

import pytest

from scripts import changed_kernels

LISTING = """
	code for sm_90
		Function : _ZN4mgpu4cuda7sorting4scanIiEEvT_
	.headerflags	@"EF_CUDA_TEXMODE_UNIFIED"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                      /* 0x00000a00ff017b82 */
                                                                               /* 0x000fe20000000800 */
        /*0010*/                   EXIT ;                                      /* 0x000000000000794d */
		Function : _ZN4mgpu4cuda7sorting4scanIfEEvT_
        /*0000*/                   EXIT ;                                      /* 0x000000000000794d */
"""
INTEGERS, FLOATS = "_ZN4mgpu4cuda7sorting4scanIiEEvT_", "_ZN4mgpu4cuda7sorting4scanIfEEvT_"


def test_kernels_are_compared_by_their_code_and_not_by_its_encoding():
    codes = changed_kernels.code_of(LISTING.splitlines())
    assert list(codes) == [INTEGERS, FLOATS]
    assert codes[INTEGERS] != codes[FLOATS]
    encoded = LISTING.replace("0x000fe20000000800", "0x000fe20000000900")
    assert changed_kernels.code_of(encoded.splitlines()) == codes
    stored = LISTING.replace("c[0x0][0x28]", "c[0x0][0x30]")
    assert changed_kernels.code_of(stored.splitlines())[INTEGERS] != codes[INTEGERS]


def test_kernels_are_the_same_changed_gone_or_new():
    before = {"a": "1", "b": "2", "c": "3"}
    after = {"a": "1", "b": "4", "d": "5"}
    assert changed_kernels.differences(before, after) == {
        "same": ["a"],
        "changed": ["b"],
        "gone": ["c"],
        "new": ["d"],
    }


@pytest.mark.skipif(shutil.which("c++filt") is None, reason="needs c++filt, of binutils")
def test_kernels_are_named_by_their_templates():
    assert changed_kernels.templates([INTEGERS, FLOATS]) == {"scan": 2}
