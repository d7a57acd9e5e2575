"""Software that no stack names is said, a few names of it."""

from dsx.verbs.job import warn_of_unknown


def test_a_few_names_of_unknown_software_are_said(caplog):
    warn_of_unknown({f"software {number}": number for number in range(5, 0, -1)})
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "software 5 (5 rows)"
    assert lines[3:] == ["and 2 more names of software are not known (3 rows)"]
