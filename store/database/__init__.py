"""The broker's database: connections, statements, its schema and what it says by itself."""
