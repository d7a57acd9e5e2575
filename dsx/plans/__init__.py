"""The plans of a search: their choices, the rules that they obey, and the enumeration of all of them."""
