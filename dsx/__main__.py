"""``dsx`` as a process, also as ``python -m dsx``: its command line, which takes a moment to load."""

import signal


def main() -> None:
    """Run the command line; Ctrl-C while it loads, or when it has ended, ends the process without a word."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dsx.verbs.process import main as command_line

    command_line()


if __name__ == "__main__":
    main()
