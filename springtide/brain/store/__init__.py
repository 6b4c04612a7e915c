"""The brain's database: schema, migrations, history."""
