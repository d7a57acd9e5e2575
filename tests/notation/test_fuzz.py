"""Texts with random faults either build or are NotationErrors; nothing else escapes, nothing hangs."""

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st
from notation.definitions import derived
from notation.design import MLP_BLOCK, STRATEGIES, TRANSFORMER

from dsx.config.search_path import packaged_data
from dsx.errors import InputError, NotationError
from dsx.notation.expressions import text as written
from dsx.notation.parse import parse

LAYERS = packaged_data() / "layers"
BLOCKS = tuple(path.read_text() for path in sorted((LAYERS / "blocks").glob("*.layer")))
OVERLAYS = tuple(path.read_text() for path in sorted((LAYERS / "strategies").glob("*.layer")))
TEXTS = (TRANSFORMER, MLP_BLOCK, *BLOCKS, *(path.read_text() for path in sorted(LAYERS.glob("*.layer"))))
OPTIONS = sorted({option for text in TEXTS for option in parse(text).options})

TOKEN = re.compile(r"[A-Za-z0-9_]+|\n|[ \t]+|.")
WORDS = sorted({token for text in (*TEXTS, *OVERLAYS) for token in TOKEN.findall(text) if not token.isspace()})
ODD = ["\n", "~", "@tp", "@*", "/tp", "/dp", "$", "0", "99999999999999999999", "(", ")", "[", "]", "\u00e9", "output"]


@st.composite
def with_faults(draw, definitions):
    """A definition with one to four tokens dropped, doubled, replaced or exchanged, or a line moved."""
    text = draw(st.sampled_from(definitions))
    text = re.sub(r"[ \t]*#.*", "", text)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.integers(0, 4)) == 0:
            parts, glue = text.split("\n"), "\n"
        else:
            parts, glue = TOKEN.findall(text), ""
        if not parts:
            break
        at, other = draw(st.integers(0, len(parts) - 1)), draw(st.integers(0, len(parts) - 1))
        match draw(st.sampled_from(["drop", "double", "replace", "copy", "exchange"])):
            case "drop":
                parts[at : at + 1] = []
            case "double":
                parts[at : at + 1] = [parts[at]] * 2
            case "replace":
                parts[at] = draw(st.sampled_from([*WORDS, *ODD]))
            case "copy":
                parts[at] = parts[other]
            case "exchange":
                parts[at], parts[other] = parts[other], parts[at]
        text = glue.join(parts)
    return text


def builds(text, strategy, options=()):
    """Whether `text` builds; if it does, everything derived from it can be shown."""
    try:
        layer = derived(text, strategy=strategy, blocks=BLOCKS, inherited=" ".join(options), bases=OVERLAYS)
    except InputError as error:
        if not isinstance(error, NotationError):
            assert "exclude each other" in str(error)
            return False
        assert re.match(r"\w+\.layer:\d+:\d+: ", str(error))
        assert error.line >= 1 and error.column >= 1
        return False
    for kernel in layer.kernels:
        for direction in (0, 1):
            assert all(written(one.bytes) for one in kernel.collectives[direction])
            assert isinstance(written(kernel.work[direction].matrix), str)
        assert isinstance(written(kernel.saved_bytes), str)
    return True


@settings(max_examples=300)
@given(with_faults(TEXTS), st.sampled_from(["", *OVERLAYS]), st.sets(st.sampled_from(OPTIONS), max_size=4))
@example("layer a\ninput x[b, s, e]\ny[b, s/tp, e/tp] = gelu(x[b, s/tp, e/tp])", "", set())  # exchanged for ever once
@example("layer a\nweight w[e]\ny[e] = gelu(w)", "", set())
@example("block mlp\ninput x[b]\nuse mlp", "", set())
def test_layers(text, strategy, options):
    builds(text, strategy, options)


@settings(max_examples=200)
@given(with_faults((*OVERLAYS, *STRATEGIES)), st.sampled_from([text for text in TEXTS if text != TRANSFORMER]))
def test_strategies(strategy, text):
    builds(text, strategy)


@settings(max_examples=200)
@given(st.text(alphabet="layerblocktdimusegyxwhnop =[],/@*~$(){}+-%<>|12#\n", max_size=80))
def test_any_characters(text):
    builds(f"layer a\ninput x[b]\n{text}\ny[b] = gelu(x)", "")
