"""How messages travel and where clients compute."""
