"""The command line: verbs and options only."""
