"""HTTP: middleware, problem documents, dependencies of routes, limits, and the routes that both services have."""
