"""Why candidates are rejected, in numbers."""

from dsx.reporting.markup import Markup, element, table
from dsx.results.manifest import Manifest


def rejected_reasons(manifest: Manifest) -> Markup:
    """Return why candidates were rejected, in numbers; a candidate counts under each of its reasons."""
    counts = manifest.counts
    if counts is None:
        return element("p", "The sweep has not counted its candidates.")
    about = {reason.name: reason.description for reason in manifest.reject_reasons}
    found = sorted(((name, number) for name, number in counts.rejected.items() if number), key=lambda one: -one[1])
    looked_at = counts.candidates - counts.skipped - counts.bounded
    rows = [
        [name.replace("_", " "), f"{number:,}", f"{100 * number / looked_at:.1f} %", about.get(name, "")]
        for name, number in found
    ]
    if not rows:
        return element("p", "No candidate was rejected: enumeration leaves out what breaks a rule.")
    return table(["reason", "candidates", "of those priced", "rule"], rows, "A candidate counts under each reason")
