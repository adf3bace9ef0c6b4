"""How a service listens: connections with deadlines and caps, TLS, and an orderly end."""
