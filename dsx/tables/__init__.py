"""Answers as text: quantities, tables and plans, the same in the shell and in Python."""
