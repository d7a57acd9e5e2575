"""A file states one idea; past 600 lines it states several."""

from pathlib import Path

DSX = Path(__file__).parents[1] / "dsx"


def test_no_file_is_longer_than_600_lines():
    lengths = {str(path.relative_to(DSX)): len(path.read_text().splitlines()) for path in DSX.rglob("*.py")}
    assert lengths
    assert not {name: lines for name, lines in lengths.items() if lines > 600}
