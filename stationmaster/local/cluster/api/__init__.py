"""The API server: types, storage, rules and the REST surface. Knows no controller and no node."""
