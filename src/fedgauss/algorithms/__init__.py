"""One file a method: what clients are asked, what they answer, what the server makes of it."""
