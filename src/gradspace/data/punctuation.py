"""Words and punctuation of a caption, split by the rules of the Penn Treebank.

The code of VSE++, VSRN, SCAN, BFAN and VSE-infinity splits captions with NLTK's tokenizer, which
follows them: punctuation marks are separate words, "t-shirt" is one word, "man's" is two.
"""

from __future__ import annotations

import re

_MARK = r"""[][(){}<>?!;@\#$%&*"`\u00ab\u00bb\u201c\u201d\u201e\u2018]"""
_COMMA = r"[:,](?!\d)"  # not inside a number or a time
_PERIOD = r"\.(?=[\])}>\"'\u00bb\u201d\u2019]*(?:\s|$))(?<!\s[^\W\d_]\.)(?<!^[^\W\d_]\.)"
_ABBREVIATION = r"(?:(?<!\w)(?:mr|mrs|ms|dr|st|jr|vs)\.(?=\s+\S))"
_RUN = r"\.{2,}|--"
_END = rf"(?=\s|$|{_MARK}|{_COMMA}|{_PERIOD}|{_RUN})"
_CONTRACTED = rf"(?:n't|['\u2019](?:s|m|d|ll|re|ve)?){_END}"
_TWO_IN_ONE = rf"can(?=not{_END})|(?:gon|wan)(?=na{_END})|got(?=ta{_END})"
_BREAK = rf"{_RUN}|{_MARK}|{_COMMA}|{_PERIOD}|{_CONTRACTED}"

TREEBANK = re.compile(
    rf"{_ABBREVIATION}|{_RUN}|{_MARK}|{_COMMA}|{_CONTRACTED}|(?<!\w)(?:{_TWO_IN_ONE})"
    rf"|(?:(?!{_BREAK})\S)+|\S"
)
