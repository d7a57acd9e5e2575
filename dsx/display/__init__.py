"""What people read: quantities, tables and plans as text, the same in the shell and in Python."""
