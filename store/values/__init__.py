"""The values that callers give and get, and the rules for them: pure Python, without a database."""
