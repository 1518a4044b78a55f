"""What callers give and get, and the rules for it: pure Python, without a database."""
