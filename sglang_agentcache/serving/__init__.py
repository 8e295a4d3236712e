"""What a request may carry, where it is carried, and the HTTP side of a server: hints, carriers, http."""
