"""A definition that breaks the grammar: file, line, column, and the nearest right thing."""

import pytest
from notation.definitions import read

from dsx.errors import NotationError
from dsx.notation.parse import parse, parse_file

OK = "layer a\ninput x[b]\n"


def check(source, line, column, words, reads=lambda source: parse(source, "some/a.layer")):
    with pytest.raises(NotationError) as caught:
        reads(source)
    error = caught.value
    assert (error.line, error.column) == (line, column), str(error)
    assert str(error).startswith(f"some/a.layer:{line}:{column}: ")
    for word in words:
        assert word in str(error), str(error)


@pytest.mark.parametrize(
    ("source", "line", "column", "words"),
    [
        ("", 1, 1, ["empty", "'layer', 'block' or 'strategy'"]),
        ("  \n# only this\n", 1, 1, ["empty"]),
        ("\nlayr a\n", 2, 1, ["not 'layr'", "did you mean 'layer'?"]),
        ("[b]", 1, 1, ["expected 'layer', 'block' or 'strategy', found '['"]),
        ("block", 1, 6, ["expected the name of the block, found 'end of line'"]),
        ("layer (a)", 1, 7, ["expected the name of the layer, found '('"]),
        ("layer a b", 1, 9, ["unexpected 'b'"]),
        ("layer a\n", 1, 1, ["layer 'a' has no operators"]),
        ("block a\ninput x[b]", 1, 1, ["block 'a' has no operators"]),
        ("layer a\n  ?", 2, 3, ["unexpected character '?'"]),
    ],
)
def test_heads(source, line, column, words):
    check(source, line, column, words)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("dim", 4, ["expected a dimension, found 'end of line'"]),
        ("dim 2d = 1", 5, ["expected a dimension, found '2d'"]),
        ("dim c 3", 7, ["expected '=', found '3'"]),
        ("dim c = 3 4", 11, ["unexpected '4'"]),
        ("input", 6, ["expected a tensor"]),
        ("weight", 7, ["expected a tensor"]),
        ("input x", 7, ["a line that makes 'x' states its dimensions: x[...]"]),
        ("input x[b]~", 11, ["'~' belongs to an argument"]),
        ("input x[]", 9, ["expected a dimension, found ']'"]),
        ("input x[b, ]", 12, ["expected a dimension, found ']'"]),
        ("input x[b s]", 11, ["expected ']', found 's'"]),
        ("input x[b, s/]", 14, ["expected a mesh axis, found ']'"]),
        ("input x[b, s/tq]", 14, ["'tq' is not a mesh axis", "did you mean 'tp'?", "tp, tp2, cp, ep, dp"]),
        ("input x[b, s/pp]", 14, ["'pp' is not a mesh axis"]),
        ("input x[b, s/tp/tp]", 12, ["'s' is divided twice by the same axis"]),
        ("input x[$]", 10, ["expected the name of a role, found ']'"]),
        ("use", 4, ["expected the name of a block, found 'end of line'"]),
        ("use (x = y)", 5, ["expected the name of a block, found '('"]),
        ("use mlp (x y)", 12, ["expected '=', found 'y'"]),
        ("use mlp (x = y", 15, ["found 'end of line'"]),
        ("use mlp (x = y, x = z)", 17, ["'x' is bound twice"]),
        ("use mlp x", 9, ["unexpected 'x'"]),
        ("use $", 6, ["expected a block parameter, found 'end of line'"]),
        ("option", 7, ["expected the name of an option, found 'end of line'"]),
        ("option 2d", 8, ["expected the name of an option, found '2d'"]),
        ("option a = | b", 12, ["expected the name of an option, found '|'"]),
        ("option a = b |", 15, ["expected the name of an option, found 'end of line'"]),
        ("option a b a", 12, ["option 'a' is declared twice"]),
        ("option when", 8, ["an option cannot be called 'when'"]),
        ("block = b", 7, ["expected the name of a block parameter, found '='"]),
        ("block a b", 9, ["expected '=' and a block after 'block a', found 'b'"]),
        ("block a =", 10, ["expected the name of a block, found 'end of line'"]),
        ("block a = b c", 13, ["unexpected 'c'"]),
        ("y[b] = f(x) when", 17, ["expected the name of an option, found 'end of line'"]),
        ("y[b] = f(x) when a", 18, ["no 'option' line above declares 'a'", "(there is none)"]),
        ("input z[b] unless a", 19, ["no 'option' line above declares 'a'"]),
        ("fuse", 5, ["expected the name of the kernel"]),
        ("fuse a b", 8, ["unexpected 'b'"]),
        ("y[b] = ", 8, ["expected an operator, found 'end of line'"]),
        ("y = f(x)", 1, ["a line that makes 'y' states its dimensions: y[...]"]),
        ("y[b] f(x)", 6, ["expected '=', found 'f'"]),
        ("y[b], = f(x)", 7, ["expected a tensor, found '='"]),
        ("y[b]~ = f(x)", 5, ["'~' belongs to an argument"]),
        ("y[b] = f", 9, ["expected '(', found 'end of line'"]),
        ("y[b] = f()", 10, ["expected a tensor, found ')'"]),
        ("y[b] = f(x", 11, ["expected ')', found 'end of line'"]),
        ("y[b] = f(x,)", 12, ["expected a tensor, found ')'"]),
        ("y[b] = f(x) g", 13, ["unexpected 'g'"]),
        ("y[b] = f{}(x)", 10, ["expected a modifier, found '}'"]),
        ("y[b] = f{panels(x)", 16, ["expected '}', found '('"]),
        ("y[b @tp, s] = f(x)", 8, ["expected ']'", "partial axes stand at the end"]),
        ("y[b @q] = f(x)", 6, ["'q' is not a mesh axis"]),
        ("y[b @] = f(x)", 6, ["expected a mesh axis, found ']'"]),
        ("y[b] = f(x[b, s/ttp])", 17, ["did you mean 'tp'?"]),
    ],
)
def test_lines(text, column, words):
    check(f"{OK}{text}\n", 3, column, words)


@pytest.mark.parametrize(
    ("lines", "column", "words"),
    [
        ("option a\noption a", 8, ["option 'a' is declared twice"]),
        ("option m = a | b\noption m = c | d", 8, ["the options of 'm' are declared twice"]),
        ("block a = b\nblock a = c", 7, ["block parameter 'a' is declared twice"]),
        ("option bias\ny[b] = f(x) unless bais", 20, ["declares 'bais'", "did you mean 'bias'?", "(bias)"]),
        ("y[b] = f(x)\nuse $core", 1, ["no line 'block core = ...' declares this block parameter"]),
        ("block core = c\nuse $cor", 1, ["no line 'block cor = ...' declares", "did you mean 'core'?"]),
    ],
)
def test_options_and_block_parameters(lines, column, words):
    check(f"{OK}{lines}\nz[b] = f(x)\n", 4, column, words)


@pytest.mark.parametrize(
    ("body", "line", "column", "words"),
    [
        ("end\ny[b] = g(x)", 3, 1, ["'end' without a 'fuse' or a 'recompute'"]),
        ("fuse f\ny[b] = g(x)", 3, 1, ["kernel 'f' has no 'end'"]),
        ("fuse f\n fuse h\ny[b] = g(x)", 4, 2, ["kernel 'f' has no 'end' yet; kernels do not nest"]),
        ("fuse f\nuse mlp\nend", 4, 1, ["a block cannot be used inside a kernel", "'f'"]),
        ("again core\ny[b] = g(x)\nend", 3, 1, ["'again' is no longer part", "'recompute NAME ... end'"]),
    ],
)
def test_kernels_and_regions(body, line, column, words):
    check(OK + body, line, column, words, read)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("role", 5, ["expected the name of a role"]),
        ("role a s", 8, ["expected '=' after role 'a'"]),
        ("rule a = s", 6, ["expected '=' after role 'rule'", "'role', 'require', 'set' and 'drop'"]),
        ("role a = s role a = b", 17, ["role 'a' is given twice"]),
        ("role a = $", 11, ["expected the name of a role, found 'end of line'"]),
        ("role a = s/cq", 12, ["'cq' is not a mesh axis", "did you mean 'cp'?"]),
        ("role a = s/tp/tp", 10, ["'s' is divided twice by the same axis"]),
        ("require e = 1 why", 11, ["expected one of == != <= >= < >, found '='"]),
        ("require e % 2", 14, ["expected one of =="]),
        ("require e == 1", 15, ["a rule ends with the name of its reason"]),
        ("require e == 1 ==", 16, ["a rule ends with the name of its reason"]),
        ("x[b] = norm(y)", 2, ["expected '=' after role 'x'", "found '['"]),
        ("set", 4, ["expected the name of an option or a block parameter, found 'end of line'"]),
        ("set core =", 11, ["expected the name of a block, found 'end of line'"]),
        ("set ring set ring", 14, ["'ring' is set twice"]),
        ("drop", 5, ["expected the reason of the rules to drop"]),
        ("drop too_narrow", 6, ["only a strategy that extends another drops rules"]),
        ("bring attention-core = my-core", 1, ["'bring' is no longer part of the notation", "'set core = my-core'"]),
    ],
)
def test_strategies(text, column, words):
    check(f"strategy a\n{text}\n", 2, column, words)


def test_what_is_defined_once_and_files_that_cannot_be_read(tmp_path):
    with pytest.raises(NotationError, match=r"absent\.layer.*cannot be read"):
        parse_file(tmp_path / "absent.layer")
    (tmp_path / "binary.layer").write_bytes(b"layer \xff")
    with pytest.raises(NotationError, match=r"binary\.layer.*cannot be read"):
        parse_file(tmp_path / "binary.layer")
    # A dimension is defined once.
    check("layer a\ndim c = 1\ndim c = 2\ny[b] = g(x)", 3, 5, ["dimension 'c' is defined twice"], read)
    # A strategy extends one that it names.
    check("strategy a extends", 1, 19, ["expected the name of the strategy that it extends, found 'end of line'"])
