"""The broker's database: connections, statements, schema and notifications."""
